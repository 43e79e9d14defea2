"""What people ask."""
