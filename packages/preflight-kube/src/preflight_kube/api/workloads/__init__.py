"""What is known about kinds of workloads: their pod templates, what their controllers write to
pods, how many pods start together.
"""
