"""The channel between the parents of one gang: who is there, what to run, what came out, one
verdict for all.
"""
