"""What an administrator asks: what is wrong in a cluster, and how one ComputeDomain stands."""
