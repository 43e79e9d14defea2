"""Preflight check: all-reduce over the whole gang, and who is to blame when it is slow."""
