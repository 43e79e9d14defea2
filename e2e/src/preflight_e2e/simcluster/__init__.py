"""The nodes, the scheduler, the volumes and the admission of a simulated cluster, over the API
double.
"""
