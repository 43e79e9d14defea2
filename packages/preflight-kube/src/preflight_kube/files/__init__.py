"""Configuration from files: YAML within bounds, schemas, and files that are read again."""
