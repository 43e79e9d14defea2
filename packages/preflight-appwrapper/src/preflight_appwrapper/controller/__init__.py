"""The shell: follow the cluster, decide, write, act."""
