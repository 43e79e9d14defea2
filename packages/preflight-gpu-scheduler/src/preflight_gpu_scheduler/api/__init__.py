"""Names, types and annotations: what crosses a border of this system."""
