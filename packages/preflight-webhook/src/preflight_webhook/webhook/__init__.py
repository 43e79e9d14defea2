"""The shell of admission: HTTP, and what is asked of the API server or followed there."""
