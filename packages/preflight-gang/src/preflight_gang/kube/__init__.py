"""A small asynchronous Kubernetes layer: connection, client, reflector, lease. Knows nothing of gangs."""
