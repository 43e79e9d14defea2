"""Answers to people: explain and show, with or without a cluster."""
