"""The shell: watches, the reconcile loops, and the writes that decisions ask for."""
