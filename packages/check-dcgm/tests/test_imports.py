from __future__ import annotations

import subprocess
import sys

from check_dcgm.check import CHECK

AFTER_THE_TOOL = "alarms catalogue judge parse summary"


def loaded(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_what_judges_is_loaded_while_the_tool_works() -> None:
    late = {f"check_dcgm.{name}" for name in AFTER_THE_TOOL.split()}
    at_start = loaded("check_dcgm.__main__", "check_dcgm.check")
    assert not (late | {"argparse", "msgspec", "tomllib"}) & at_start
    assert late <= loaded(*CHECK.later)
