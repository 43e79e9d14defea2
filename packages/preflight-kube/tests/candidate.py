"""A candidate for a lease as a process of its own: ``candidate.py KUBECONFIG NAMESPACE IDENTITY
DURATION``.

While it leads it writes a mark every few milliseconds, as eagerly as it may, and says on stdout
what it does. Its writes stand behind two fences, as a leader's must: it asks for its right before
each, and each tests that the mark is still of the epoch that was last seen. The first alone would
leave the moment between the question and the sending.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Any

import anyio
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.runtime.lease import Leadership, lead


async def main(kubeconfig: str, namespace: str, identity: str, duration: str) -> None:
    async with Client(connection({"KUBECONFIG": kubeconfig}), agent="tests") as client:

        async def body(leadership: Leadership) -> None:
            writer = client.fenced(leadership.valid)
            path = f"/api/v1/namespaces/{namespace}/configmaps/marks"
            seen = (await client.get(path, dict[str, Any]))["data"]["epoch"]
            mark = {"by": identity, "epoch": str(leadership.epoch), "count": "0"}
            print("leads", leadership.epoch, flush=True)
            try:
                while True:
                    try:
                        mark["count"] = str(
                            int(mark["count"]) + 1
                        )  # a write that changes nothing is none
                        test = {"op": "test", "path": "/data/epoch", "value": seen}
                        await writer.json_patch(
                            path, [test, {"op": "replace", "path": "/data", "value": mark}]
                        )
                        seen = mark["epoch"]
                    except Fenced:
                        print("fenced", leadership.epoch, flush=True)
                        await anyio.sleep_forever()
                    except KubeError as error:
                        print("refused", error, flush=True)
                    await anyio.sleep(0.005)
            finally:
                print("ends", leadership.epoch, leadership.valid(), flush=True)

        await lead(
            client,
            namespace=namespace,
            name="leader",
            identity=identity,
            duration=float(duration),
            retry=0.2,
            body=body,
        )


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    anyio.run(partial(main, *sys.argv[1:]))
