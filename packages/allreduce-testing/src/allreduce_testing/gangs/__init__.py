"""Gangs of real checks: processes of check-nccl-allreduce with rosters, connectors and links that
a test or a bench makes for them; the package's README has the map.

Playing a gang needs torch, which the tests of check-nccl-allreduce and the session `bench` install.
Children name their modules as strings (``-m allreduce_testing.gangs.mutants``), so they need no
path to be set.
"""
