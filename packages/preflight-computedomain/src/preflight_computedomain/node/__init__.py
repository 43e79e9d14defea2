"""The program of every node, which puts channel 0 into pods; it does not know the controller."""
