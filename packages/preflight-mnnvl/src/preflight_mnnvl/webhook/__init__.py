"""Admission: reviews of PodCliques and PodCliqueSets, and what they look up."""
