"""All that crosses a border: names, objects, files and messages that others write or read. Pure."""
