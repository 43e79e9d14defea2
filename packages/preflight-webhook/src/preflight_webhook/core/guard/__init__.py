"""Pods that are refused: reserved names, ways round a check, other servers, host paths. Pure."""
