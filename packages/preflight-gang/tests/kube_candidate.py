"""A candidate for a lease as a process of its own: ``kube_candidate.py KUBECONFIG NAMESPACE IDENTITY DURATION``.

While it leads it writes a mark every few milliseconds, as eagerly as it may, and says on stdout what it does.
"""

from __future__ import annotations

import logging
import sys

import anyio
from preflight_gang.kube.client import Client, Fenced, KubeError
from preflight_gang.kube.connection import connection
from preflight_gang.kube.lease import Leadership, lead


async def main(kubeconfig: str, namespace: str, identity: str, duration: str) -> None:
    async with Client(connection({"KUBECONFIG": kubeconfig})) as client:

        async def body(leadership: Leadership) -> None:
            print("leads", leadership.epoch, flush=True)
            writer = client.fenced(leadership.valid)
            path = f"/api/v1/namespaces/{namespace}/configmaps/marks"
            mark = {"data": {"by": identity, "epoch": str(leadership.epoch)}}
            try:
                while True:
                    try:
                        await writer.merge_patch(path, mark)
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
    anyio.run(main, *sys.argv[1:])
