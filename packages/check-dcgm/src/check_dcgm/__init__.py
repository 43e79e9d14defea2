"""Preflight check: DCGM diagnostics of a pod's own GPUs through the node's hostengine."""
