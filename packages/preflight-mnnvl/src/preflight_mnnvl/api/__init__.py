"""All that crosses a border: names, types, annotations, and what labels say of an object."""
