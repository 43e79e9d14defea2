"""What decides, over plain data."""
