"""What the bench of gangs runs, a program in a process of its own
(``python -m preflight_e2e.gangs.verdict --help``) that writes its figures with ``--json``.

`verdict`: how soon a culprit is found. The gangs are those of `allreduce_testing.gangs`, which the
session `bench` installs beside the e2e; nothing else here imports this package.
"""
