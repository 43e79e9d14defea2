"""Decisions, over plain data."""
