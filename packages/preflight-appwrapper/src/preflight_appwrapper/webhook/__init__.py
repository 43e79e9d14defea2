"""Admission of AppWrappers."""
