"""Host-managed IMEX: ComputeDomain controller and DRA kubelet plugin."""
