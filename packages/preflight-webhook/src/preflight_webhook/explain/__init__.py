"""What would happen to pods of files or of a cluster, in words."""
