"""Init containers with what they inherit, and the JSONPatch that brings them. Pure."""
