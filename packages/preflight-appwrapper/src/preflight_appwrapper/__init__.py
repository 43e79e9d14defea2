"""AppWrapper: workloads that are watched, reset, moved off sick nodes, and gone without a trace."""
