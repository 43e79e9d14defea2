"""What the benches of gangs run, each a program in a process of its own
(``python -m preflight_e2e.gangs.reals --help``) that writes its figures with ``--json``.

`clean`: healthy gangs; `reals`: faults over and over; `verdict`: how soon a culprit is found. The
gangs are those of `allreduce_testing.gangs`, which the session `bench` installs beside the e2e;
nothing else here imports this package.
"""
