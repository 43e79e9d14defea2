"""The package starts no program: import contracts forbid the modules, and this the functions of
modules that it may import.
"""

from __future__ import annotations

import ast
from importlib.resources import files
from pathlib import Path

import pytest

SOURCE = Path(str(files("preflight_computedomain")))
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "_generated" not in path.parts)
assert len(MODULES) > 20
STARTS = {
    "system",
    "popen",
    "fork",
    "forkpty",
    "posix_spawn",
    "posix_spawnp",
    "run_process",
    "open_process",
    "to_process",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "subprocess_exec",
    "subprocess_shell",
    "ProcessPoolExecutor",
}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_names_a_function_that_starts_a_process(path: Path) -> None:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named |= {node.id for node in nodes if isinstance(node, ast.Name)}
    assert {one for one in named if one in STARTS or one.startswith(("exec", "spawn"))} == set()
