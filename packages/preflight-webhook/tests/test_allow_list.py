"""How the allow-list is read, and that each of its rows decides about something."""

from __future__ import annotations

import pytest
from preflight_webhook.config.allow import AllowRow, refusal
from preflight_webhook.core.inject.allow_list import MOUNTS, TOPOLOGY, VARIABLES, WorkloadSetting

ROWS = (
    AllowRow(lambda n: n < 0, "{0} is below nothing"),
    AllowRow(lambda n: n == 7),
    AllowRow(lambda n: n % 7, "{0} is {1} over a seven", unless=lambda n: n > 100),
)


@pytest.mark.parametrize(
    ("thing", "why"),
    [(-7, "-7 is below nothing"), (7, ""), (8, "8 is 1 over a seven"), (101, ""), (14, "")],
)
def test_the_first_row_about_a_thing_decides_and_what_no_row_is_about_is_allowed(
    thing: int, why: str
) -> None:
    assert refusal(ROWS, thing) == why


@pytest.mark.parametrize("row", range(len(VARIABLES)))
def test_each_row_of_variables_decides_about_one(row: int) -> None:
    name = ("NCCL_COMM_ID", "LD_PRELOAD", "NCCL_ALGO", "MY_OWN")[row]
    first = next(i for i, one in enumerate(VARIABLES) if one.what(WorkloadSetting(name, ())))
    assert first == row
    assert refusal(VARIABLES, WorkloadSetting(name, ()))
    assert bool(refusal(VARIABLES, WorkloadSetting(name, (name,)))) is (row == 0)
    by_pattern = refusal(VARIABLES, WorkloadSetting(name, ("*",)))
    assert bool(by_pattern) is (name != "NCCL_ALGO")


def test_a_topology_file_is_a_known_variable_though_its_name_says_a_file() -> None:
    assert not refusal(VARIABLES, WorkloadSetting(TOPOLOGY, ("NCCL_*",)))


@pytest.mark.parametrize(
    ("path", "mount", "why"),
    [
        ("/data", {"subPathExpr": "$(A)"}, "its subPathExpr is the container's own"),
        ("/dev/shm", {"name": "disk"}, "its volume is not an emptyDir of medium Memory"),
        ("/dev/shm", {"name": "memory"}, ""),
        ("/", {}, "it would cover the whole image"),
        ("/usr/lib", {}, "programs and settings are looked for in /usr"),
        ("/data", {}, "no pattern of mountPatterns names the folder /data"),
        ("/mnt/a", {}, ""),
    ],
)
def test_each_row_of_mounts_decides_about_one(path: str, mount: dict[str, str], why: str) -> None:
    found = refusal(MOUNTS, WorkloadSetting(path, ("/*", "/mnt/*"), mount, ("memory",)))
    assert found.startswith(why)
    assert bool(found) is bool(why)
