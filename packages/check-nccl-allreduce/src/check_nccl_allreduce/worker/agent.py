"""torchrun, loaded ahead of time: imports torch while the gang is still awaited, then takes its arguments from stdin.

One line of JSON: ``{"argv": [...], "env": {...}}``. End of file instead: there is nothing to run.
"""

from __future__ import annotations

import json
import os
import sys

from .process import AGENT, end_with_parent


def main() -> None:
    end_with_parent()
    from torch.distributed import run  # the seconds that this costs are the reason for this module

    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    os.environ.update(order["env"])
    os.environ[AGENT] = str(os.getpid())
    run.main(order["argv"])


if __name__ == "__main__":
    main()
