"""The gang of a pod, and what it is stamped with. Pure."""
