"""A program: the controller, killed by SIGKILL at one of its writes, before it is sent or after it
has arrived and before its answer is read.

`python mortal.py NAMESPACE KIND STEP early|late` is followed by the arguments of `controller`.
KIND: `objects`, or `events`; writes of the other kind, to other namespaces, and of the lease pass.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from preflight_kube.client import client
from preflight_kube.runtime import manager
from preflight_mnnvl.cli import main

NAMESPACE, KIND, STEP, WHEN = sys.argv[1:5]


class Mortal(client.Client):
    """Its fenced copy shares ``left`` with it."""

    left = [int(STEP)]  # noqa: RUF012 - one for all

    async def _write(
        self, verb: str, method: str, path: str, body: object | None, **more: Any
    ) -> bytes:
        events = path.partition("?")[0].endswith("/events")
        counts = f"/namespaces/{NAMESPACE}/" in path and "/leases" not in path
        if not counts or events is not (KIND == "events"):
            return await super()._write(verb, method, path, body, **more)
        self.left[0] -= 1
        if self.left[0] >= 0:
            return await super()._write(verb, method, path, body, **more)
        if WHEN == "late":
            await super()._write(verb, method, path, body, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process that was killed goes on")


vars(manager)["Client"] = Mortal  # the one that a service is built with
sys.argv[1:] = ["controller", *sys.argv[5:]]
main()
