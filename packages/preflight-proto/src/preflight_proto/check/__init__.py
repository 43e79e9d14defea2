"""The check kit: what every check, ours or a stranger's, stands on.

A check is one settings class, one ``async def probe(run)``, and ``main(Check(...))``. Start reading at
:mod:`preflight_proto.check.runner`, the page: settings, probe, events, report, result, exit.
"""
