"""The configuration, and what may be in it. Pure."""
