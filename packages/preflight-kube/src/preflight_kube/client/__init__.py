"""Requests to the API server, their answers, pages and watches."""
