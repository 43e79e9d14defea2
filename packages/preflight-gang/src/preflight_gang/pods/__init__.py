"""What concerns one pod alone: results of its checks, and its node."""
