"""Decisions, without I/O: snapshot, reconcile, and one file a rule."""
