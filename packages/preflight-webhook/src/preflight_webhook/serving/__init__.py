"""The server: two ports, files that are watched, and what comes in over HTTP."""
