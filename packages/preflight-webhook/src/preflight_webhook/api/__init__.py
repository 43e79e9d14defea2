"""Kubernetes objects as they cross the border: AdmissionReviews and the fields of a pod. Pure."""
