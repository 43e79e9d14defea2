"""One pod's way through admission. Pure."""
