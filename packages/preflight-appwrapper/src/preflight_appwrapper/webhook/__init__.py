"""What is said of an AppWrapper before it is stored."""
