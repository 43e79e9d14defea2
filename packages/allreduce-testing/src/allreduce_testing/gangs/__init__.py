"""Gangs of real checks: processes of check-nccl-allreduce with rosters, connectors and links that
a test or a bench makes for them.

What a gang is made of:

- `gang`: a gang on loopback addresses. Each member is a process of the check with a roster folder,
  a state folder and a fake connector of its own; leaving the context ends all of them, and fails
  where a process is left behind.
- `links`: the same on shaped links between network namespaces (root, `ip`, `tc`).
- `preloaded`: a process that has torch loaded and forks agents, so that each gang need not load it.
- `mutants`: agents with a defect, by the name in the variable ``MUTANT``.
- `doubles`: what a check on gloo is given although gloo has no use for it.

What is played with them:

- `rows`: one row of the fault matrix (`preflight_testing.matrix.fault`), compared with how it must
  end; the tests of check-nccl-allreduce run them.
- `crowd`: one gang of thousands on one core (``python -m allreduce_testing.gangs.crowd --help``).

Playing a gang needs torch, which the tests of check-nccl-allreduce and the session `bench` install.
Children name their modules as strings (``-m allreduce_testing.gangs.mutants``), so they need no
path to be set.
"""
