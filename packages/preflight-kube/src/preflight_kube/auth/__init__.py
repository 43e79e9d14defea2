"""Connections to a cluster: kubeconfig, exec credentials, service account tokens."""
