"""The fault matrix of `e2e/matrix`: the types of its rows, and the nodes that they are about."""
