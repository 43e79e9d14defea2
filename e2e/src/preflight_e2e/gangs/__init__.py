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
- `scripted`: checks whose ranks are made up, forked from one process.

What is played with them:

- `rows`: one row of the fault matrix (`preflight_e2e.fault`), compared with how it must end; the
  tests of check-nccl-allreduce run them.
- `clean`, `reals`, `verdict`, `crowd`: programs that the benches start in processes of their own
  (``python -m preflight_e2e.gangs.reals --help``) and that write their figures with ``--json``:
  healthy gangs, faults over and over, how soon a culprit is found, thousands of members.

Importing a module here needs check-nccl-allreduce beside the e2e, and playing a gang torch: its own
tests have both, the session `bench` too. Nothing else of the e2e imports this package. Children
name their modules as strings (``-m preflight_e2e.gangs.mutants``), so they need no path to be set.
"""
