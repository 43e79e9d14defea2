"""What the tests of check-nccl-allreduce and the benches share: gangs of real checks, and simulated
gangs whose truth is known. Made for tests; nothing that ships imports it.
"""
