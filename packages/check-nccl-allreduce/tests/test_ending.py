"""Killed workers are gone when their last thread is, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from check_nccl_allreduce.worker import process


def entry(proc: Path, pid: int, **states: str) -> None:
    """A process as /proc has it, with a state for each of its threads."""
    for name, state in states.items():
        folder = proc / str(pid) / "task" / name.removeprefix("t")
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{folder.name} (a) name) {state} 1 1 1 0\n")


def test_a_thread_that_sleeps_in_the_kernel_is_seen_behind_a_leader_that_is_a_zombie(
    tmp_path: Path,
) -> None:
    entry(tmp_path, 7, t7="Z", t8="D")
    assert process.end([7], 0.1, kill=lambda _: None, proc=str(tmp_path)) == [7]
    assert process.asleep([7], str(tmp_path))


def test_a_process_whose_threads_have_all_ended_is_gone(tmp_path: Path) -> None:
    entry(tmp_path, 7, t7="Z", t8="X")
    assert process.end([7], 60, kill=lambda _: None, proc=str(tmp_path)) == []


def test_one_that_is_left_and_does_not_sleep_in_the_kernel_is_told_apart(tmp_path: Path) -> None:
    entry(tmp_path, 7, t7="Z", t8="R")
    assert process.end([7], 0.1, kill=lambda _: None, proc=str(tmp_path)) == [7]
    assert not process.asleep([7], str(tmp_path))


GRANDCHILD = """
import os, signal, sys
from check_nccl_allreduce.worker import process
process.adopt_orphans()
read, write = os.pipe()
if (child := os.fork()) == 0:
    if (worker := os.fork()) == 0:
        os.write(write, b"up")
        signal.pause()
    signal.pause()
os.read(read, 2)
killed = []
left = process.end([child], 30, kill=lambda pid: (killed.append(pid), process.kill(pid)))
print(len(killed), left, process._group("/proc"))
"""


def test_torchruns_own_workers_are_waited_for_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GRANDCHILD],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["2", "[]", "[]"]


def test_without_a_group_of_its_own_only_its_children_are_killed() -> None:
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "from check_nccl_allreduce.worker import process; print(process._group('/proc'))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.strip() == "[]"
