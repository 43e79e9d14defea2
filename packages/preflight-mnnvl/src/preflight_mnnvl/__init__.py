"""Multi-node NVLink for Grove: annotations become a ComputeDomain, and claims in PodCliques."""
