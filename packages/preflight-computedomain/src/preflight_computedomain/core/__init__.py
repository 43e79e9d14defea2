"""Decisions: about a ComputeDomain, a claim, a node's clique and its slice. Pure."""
