"""What is asked of the API server, or followed there."""
