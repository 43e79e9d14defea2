"""Decisions as functions and generators over plain data, one file a rule."""
