"""One gang from its members to what is written about it."""
