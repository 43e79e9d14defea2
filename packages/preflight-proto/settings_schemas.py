"""Make ``src/preflight_proto/settings/<check>.json`` of what the known checks say of their
variables.

Run it where all members are installed; running it twice changes nothing.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from preflight_proto.check.runner import described

OUT = Path(__file__).resolve().parent / "src" / "preflight_proto" / "settings"
CHECKS = ("check_dcgm", "check_nccl_loopback", "check_nccl_allreduce")


def main() -> None:
    """Write one file for each check."""
    for module in CHECKS:
        check = import_module(f"{module}.check").CHECK
        (OUT / f"{check.name}.json").write_text(described(check))


if __name__ == "__main__":
    main()
