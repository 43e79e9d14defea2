"""What tests of every member stand on: an API double, real API servers, Helm, rights, a proxy,
waiting, and the rows of the fault matrix.
"""
