"""The program of every node: the DRA driver that puts channel 0 into pods. It does not know the
controller.
"""
