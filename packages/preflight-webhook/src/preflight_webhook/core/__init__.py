"""The decision about one pod. Pure."""
