"""Measurements: `python -m preflight_e2e.bench webhook --json FILE`."""
