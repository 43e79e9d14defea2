"""The program: a signal counts from here on, before the imports that take time."""

from __future__ import annotations

from typing import NoReturn

from preflight_proto.sigterm import remember


def main() -> NoReturn:
    """Run the check; the heavy imports come after the start time is noted."""
    remember()
    from .check import main as run

    run()


if __name__ == "__main__":
    main()
