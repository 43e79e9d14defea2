"""Resources, claims and devices of a pod. Pure."""
