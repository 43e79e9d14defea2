"""What people ask of the cluster about its gangs."""
