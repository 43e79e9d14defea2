"""One GPU node, faked at its outermost edge: device plugin, DRA drivers, DCGM hostengine, platform
connector.

Runs as a DaemonSet pod with the host's network. All of them read one node.json, which the test
writes into the ConfigMap `node-<NODE_NAME>`; this process brings it to /etc/node-local and
acknowledges it by an annotation. What happens is printed as JSON lines. Nothing of Preflight is
imported.

Where there is no kubelet (FAKE_NODE_STDIN=1) it is a plain process: one node.json a line comes on
standard input, there is neither device plugin nor DRA driver, FAKE_NODE_LOCAL, FAKE_NODE_SOCKET and
FAKE_NODE_ENGINE_PORT say where things are, and it ends with its input.

node.json: {"gpus": [{"uuid", "name", "pci", "link": "nvlink" | "pcie"}],
            "driver": "broken" to hide all GPUs,
            "plugin": "absent" where no device plugin hands them out,
            "engine": what the DCGM hostengine finds and says; see hostengine.py,
            "connector": {"mode": "ok" | "refuse" | "hang" | "absent"},
            "dra": {"gpus": [uuid] that are given by claims and not by number, "nics": how many
            network devices,
                    "channels": 1 where the node is in an NVLink fabric and hands out its channel},
            "nccl": what `all_reduce_perf` finds; see there,
            "network": {"sends_mbit": number} for processes without a network of their own; see
            net/sitecustomize.py}
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc
import health_event_pb2 as he
import health_event_pb2_grpc as he_grpc
from google.protobuf import empty_pb2, json_format
from hostengine import Engine
from kube import api, found

NODE, HOST_IP = os.environ["NODE_NAME"], os.environ["HOST_IP"]
WITHOUT_KUBELET = bool(os.environ.get("FAKE_NODE_STDIN"))
LOCAL = Path(os.environ.get("FAKE_NODE_LOCAL", "/etc/node-local"))
SOCKET = Path(os.environ.get("FAKE_NODE_SOCKET", "/var/run/nvsentinel/nvsentinel.sock"))
ENGINE_PORT = int(os.environ.get("FAKE_NODE_ENGINE_PORT", "5555"))


def tell(**line):
    print(json.dumps({"node": NODE, **line}), flush=True)


class Node:
    """node.json, and when it changes."""

    def __init__(self):
        self.name, self.local = NODE, LOCAL
        self.facts = {"gpus": []}
        self.changed = asyncio.Event()

    def put(self, facts):
        self.facts = facts
        part = LOCAL / "node.json.part"
        part.write_text(json.dumps(facts))
        part.chmod(0o644)
        part.replace(LOCAL / "node.json")
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def engine(self):
        return self.facts.get("engine", {})

    @property
    def connector(self):
        return self.facts.get("connector", {})


# --- configuration: the ConfigMap of this node


async def follow_configmap(node):
    path = f"/api/v1/namespaces/{os.environ['NAMESPACE']}/configmaps/node-{NODE}"
    seen = None
    while True:
        with contextlib.suppress(OSError, ValueError):
            made = await asyncio.to_thread(api, "GET", path)
            wanted = made["metadata"]["annotations"]["fake-node/wanted"]
            if wanted != seen:
                node.put(json.loads(made["data"]["node.json"]))
                await node.applied()
                seen = wanted
                note = {"metadata": {"annotations": {"fake-node/applied": wanted}}}
                await asyncio.to_thread(api, "PATCH", path, note, "application/merge-patch+json")
                tell(configured=True)
        await asyncio.sleep(0.2)


async def follow_stdin(node):
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        node.put(json.loads(line))
        await node.applied()
        tell(configured=True)


# --- platform connector


class Connector(he_grpc.PlatformConnectorServicer):
    """Keeps node conditions as the real one does: by exact text, split at `;`,
    cleared by entity.
    """

    def __init__(self, node):
        self.node = node
        self.conditions = {}

    def HealthEventOccurredV1(self, batch, context):
        mode = self.node.connector.get("mode", "ok")
        if mode == "hang":
            while context.is_active():
                time.sleep(0.2)
            return empty_pb2.Empty()
        if mode == "refuse":
            context.abort(grpc.StatusCode.UNAVAILABLE, "set to refuse")
        for event in batch.events:
            if event.nodeName != NODE:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, f"event about {event.nodeName} on {NODE}"
                )
            if event.recommendedAction == he.CUSTOM and not event.customRecommendedAction:
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, "CUSTOM without customRecommendedAction"
                )
        token = dict(context.invocation_metadata()).get("authorization")
        tell(batch=len(batch.events), authorized=bool(token))
        for event in batch.events:
            tell(
                event=json_format.MessageToDict(
                    event,
                    preserving_proto_field_name=True,
                    always_print_fields_with_no_presence=True,
                )
            )
            self.keep(event)
        return empty_pb2.Empty()

    def keep(self, event):
        if event.processingStrategy in (he.STORE_ONLY, he.STORE_AND_ANALYSE):
            return
        entities = "".join(f"{e.entityType}:{e.entityValue} " for e in event.entitiesImpacted)
        now = self.conditions.get(event.checkName, "")
        messages = [m for m in now.split(";") if m]
        if event.isHealthy:
            messages = [m for m in messages if entities and entities not in m] if entities else []
        elif event.isFatal:
            message = f"ErrorCode:{','.join(event.errorCode)} {entities}{event.message}"
            messages += [message] if message not in messages else []
        after = ";".join(messages)
        if after != now:
            self.conditions[event.checkName] = after
            tell(condition=event.checkName, messages=messages)


class Connection:
    """The connector's socket, which is there or is not."""

    def __init__(self, node):
        self.node = node
        self.connector = Connector(node)
        self.server = None

    async def follow(self):
        absent = self.node.connector.get("mode") == "absent"
        if absent and self.server:
            await asyncio.to_thread(self.server.stop(0).wait)
            SOCKET.unlink(missing_ok=True)
            self.server = None
        if not absent and not self.server:
            self.server = grpc.server(futures.ThreadPoolExecutor(8))
            he_grpc.add_PlatformConnectorServicer_to_server(self.connector, self.server)
            SOCKET.unlink(missing_ok=True)
            self.server.add_insecure_port(f"unix://{SOCKET}")
            self.server.start()
            SOCKET.chmod(0o666)


async def main():
    node = Node()
    engine, connection = Engine(node, tell, HOST_IP, ENGINE_PORT), Connection(node)
    drivers = []

    async def applied():
        await engine.follow()
        await connection.follow()
        for driver in drivers:
            await driver.publish()

    node.applied = applied
    if WITHOUT_KUBELET:
        await follow_stdin(node)
        return
    import dra_driver
    from device_plugin import run_plugin

    shutil.copy("/opt/fake-node/libnvidia-ml.so.1", LOCAL / "libnvidia-ml.so.1")
    (LOCAL / "libnvidia-ml.so.1").chmod(0o755)
    drivers += dra_driver.drivers(node, tell, api, found)
    async with asyncio.TaskGroup() as group:
        group.create_task(follow_configmap(node))
        group.create_task(run_plugin(node, tell))
        for driver in drivers:
            group.create_task(driver.run())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
