"""A GPU scheduler: claims, leases and an extender that give a pod its very GPUs."""
