"""Answers to an administrator: what is wrong in a cluster, and how one ComputeDomain stands."""
