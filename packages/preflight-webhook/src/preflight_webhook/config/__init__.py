"""The configuration, and every problem that it may have. Pure."""
