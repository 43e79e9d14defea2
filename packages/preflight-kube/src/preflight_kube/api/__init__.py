"""Typed subsets of Kubernetes' kinds, and pure functions over them."""
