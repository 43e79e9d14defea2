"""torchrun, loaded ahead of time: imports torch while the gang is still awaited, then takes its arguments from stdin.

One line of JSON: ``{"argv": [...], "env": {...}}``. End of file instead: there is nothing to run. The ranks are forked from here
(``--start-method=fork``): with eight of them on a few cores, eight imports of torch would take longer than the measurement. Nothing
here touches CUDA before.
"""

from __future__ import annotations

import json
import os
import sys

from .process import AGENT, end_with_parent

__all__ = ["launch", "main"]


def main() -> None:
    end_with_parent()
    # The seconds that these cost are the reason for this module.
    from torch.distributed import run  # noqa: F401

    from . import rank  # noqa: F401

    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    os.environ.update(order["env"])
    os.environ[AGENT] = str(os.getpid())
    launch(order["argv"])


def launch(argv: list[str]) -> None:
    """torchrun with these options, on our own function instead of a script."""
    from torch.distributed import run
    from torch.distributed.launcher.api import elastic_launch

    from . import rank

    config, _, _ = run.config_from_args(run.parse_args([*argv, "--start-method=fork", "rank"]))
    elastic_launch(config=config, entrypoint=rank.main)()


if __name__ == "__main__":
    main()
