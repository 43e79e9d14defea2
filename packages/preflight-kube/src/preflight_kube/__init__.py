"""The Kubernetes layer of every service: connection, client, reflector, lease, queue, health, logs, admission server."""
