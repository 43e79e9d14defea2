"""The check kit: what every check, ours or a third party's, is built on.

A check is one settings class, one ``async def probe(run)``, and ``run_main(Check(...))``. Start
reading at :mod:`preflight_proto.check.runner`, the main flow: settings, probe, events, report,
result, exit.
"""

from .child import Completed, ToolMissing
from .gpus import Gpu
from .runner import Check, Run, run_main
from .settings import (
    Parser,
    SettingsError,
    duration,
    endpoints,
    gbps,
    one_of,
    setting,
    size,
    text,
    text_list,
    whole_number,
)
from .verdict import NODE, Action, Failed, Finding, Inconclusive, Outcome, Skipped, Subject, Verdict

__all__ = [
    "NODE",
    "Action",
    "Check",
    "Completed",
    "Failed",
    "Finding",
    "Gpu",
    "Inconclusive",
    "Outcome",
    "Parser",
    "Run",
    "SettingsError",
    "Skipped",
    "Subject",
    "ToolMissing",
    "Verdict",
    "duration",
    "endpoints",
    "gbps",
    "one_of",
    "run_main",
    "setting",
    "size",
    "text",
    "text_list",
    "whole_number",
]
