"""GPU pods without checks, counted."""
