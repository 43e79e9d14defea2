"""The Kubernetes layer of every service: connection, client, reflector, lease, work queue. Knows
nothing of who uses it.
"""
