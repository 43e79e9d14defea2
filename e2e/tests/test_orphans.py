"""No process outlives the demo."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import subprocess, sys, time
from preflight_e2e.demo import orphans
orphans.adopt()
# A child that leaves a grandchild behind, in a session of its own.
leave = '''
import subprocess
silent = subprocess.DEVNULL
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=silent, stderr=silent).pid, flush=True)
'''
print(subprocess.run([sys.executable, "-c", leave], capture_output=True, text=True).stdout.strip())
orphans.end()
"""


def test_what_a_killed_check_leaves_behind_is_ended() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    pid = int(done.stdout)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    raise AssertionError(f"process {pid} is still there")
