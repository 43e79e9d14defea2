"""Command lines: verbs, exit statuses and what is printed."""
