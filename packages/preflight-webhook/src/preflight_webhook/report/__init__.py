"""Explanations for people: pods of files or of a cluster, and what would happen to them."""
