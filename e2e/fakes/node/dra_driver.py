"""The DRA drivers: GPUs, network devices and channels between nodes that pods get by ResourceClaims
instead of counting.

Each driver publishes one ResourceSlice of the devices that node.json gives it, prepares what the
scheduler has allocated, and tells containerd by CDI what a container with that claim gets. What is
prepared is kept on disk beside the driver's socket, so that a driver that is started again neither
forgets a claim nor gives a device away twice.
"""

import asyncio
import contextlib
import json
from pathlib import Path

import dra_pb2 as dra
import grpc
import pluginregistration_pb2 as registration
import pluginregistration_pb2_grpc as registration_grpc

PLUGINS = Path("/var/lib/kubelet/plugins")
REGISTRY = Path("/var/lib/kubelet/plugins_registry")
CDI = Path("/etc/cdi")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
VERSIONS = ("v1", "v1beta1")
LIBRARY = "libnvidia-ml.so.1"


def gpus_of(node):
    """What the GPU driver offers: {device name: its UUID}."""
    order = [gpu["uuid"] for gpu in node.facts["gpus"]]
    return {f"gpu-{order.index(uuid)}": uuid for uuid in node.facts.get("dra", {}).get("gpus", [])}


def nics_of(node):
    """What the network driver offers: {device name: its id}."""
    return {
        f"nic-{i}": f"{node.name}-nic-{i}" for i in range(node.facts.get("dra", {}).get("nics", 0))
    }


def channels_of(node):
    """What the driver of ComputeDomains offers: the one channel that a node hands out, {device
    name: its number}.
    """
    return {f"channel-{i}": i for i in range(node.facts.get("dra", {}).get("channels", 0))}


def indexed(device, ident):
    return {"id": {"string": ident}, "index": {"int": int(device.rpartition("-")[2])}}


def channel(device, ident):
    return {"type": {"string": "channel"}, "id": {"int": ident}}


def gpu_edits(node, device, uuid, config):
    """What NVIDIA's driver does by device nodes and its library: a variable a GPU, as a container
    may have several claims.
    """
    mounts = [
        (str(node.local), str(node.local)),
        (str(node.local / LIBRARY), f"/usr/lib/x86_64-linux-gnu/{LIBRARY}"),
    ]
    return {
        "env": [f"FAKE_GPU_{device.removeprefix('gpu-')}={uuid}"],
        "mounts": [
            {"hostPath": own, "containerPath": seen, "options": ["ro", "bind"]}
            for own, seen in mounts
        ],
    }


def nic_edits(node, device, ident, config):
    return {"env": [f"FAKE_NIC_{device.removeprefix('nic-')}={ident}"]}


def channel_edits(node, device, ident, config):
    """What NVIDIA's driver does by a device node. Raises ValueError where the claim names no
    ComputeDomain.
    """
    domain = config.get("domainID")
    if not domain:
        raise ValueError("names no ComputeDomain (domainID in its parameters)")
    return {"env": [f"FAKE_IMEX_CHANNEL={ident}", f"FAKE_IMEX_DOMAIN={domain}"]}


class Driver:
    """One driver on one node. ``offers(node)``: its devices; ``edits(node, device, id, config)``: a
    container's, in CDI's words, by what the claim has the driver know; ``attributes(device, id)``:
    what the scheduler may choose by.
    """

    def __init__(self, name, node, tell, api, found, offers, edits, attributes=indexed):
        self.name, self.node, self.tell, self.api, self.found = name, node, tell, api, found
        self.offers, self.edits, self.attributes = offers, edits, attributes
        self.folder = PLUGINS / name
        self.state = self.folder / "prepared.json"
        self.lock, self.publishing = asyncio.Lock(), asyncio.Lock()

    # --- what the scheduler chooses from

    async def publish(self):
        """Make the node's slice what the facts say. Raises OSError."""
        async with self.publishing:
            name = f"{self.node.name}-{self.name}"
            now = await asyncio.to_thread(self.found, f"{SLICES}/{name}")
            offered = self.offers(self.node).items()
            devices = [
                {"name": device, "attributes": self.attributes(device, ident)}
                for device, ident in offered
            ]
            if (now["spec"].get("devices", []) if now else []) == devices:
                return
            if not devices:
                await asyncio.to_thread(self.api, "DELETE", f"{SLICES}/{name}")
            else:
                generation = now["spec"]["pool"]["generation"] + 1 if now else 1
                pool = {"name": self.node.name, "generation": generation, "resourceSliceCount": 1}
                spec = {
                    "driver": self.name,
                    "nodeName": self.node.name,
                    "pool": pool,
                    "devices": devices,
                }
                version = {"resourceVersion": now["metadata"]["resourceVersion"]} if now else {}
                kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
                method, path = ("PUT", f"{SLICES}/{name}") if now else ("POST", SLICES)
                body = {**kind, "metadata": {"name": name, **version}, "spec": spec}
                await asyncio.to_thread(self.api, method, path, body)
            self.tell(published=self.name, devices=[one["name"] for one in devices])

    # --- what the kubelet asks

    async def prepare(self, request, context):
        answer = dra.NodePrepareResourcesResponse()
        async with self.lock:
            for claim in request.claims:
                try:
                    given = await self.give(claim)
                except (OSError, LookupError, ValueError) as error:
                    answer.claims[
                        claim.uid
                    ].error = f"{self.name}: {claim.namespace}/{claim.name}: {error}"
                    continue
                devices = answer.claims[claim.uid].devices  # an entry even where there are none
                for one in given:
                    devices.add(
                        request_names=[one["request"]],
                        pool_name=self.node.name,
                        device_name=one["device"],
                        cdi_device_ids=[f"{self.name}/claim={claim.uid}-{one['device']}"],
                    )
                self.tell(
                    prepared=f"{claim.namespace}/{claim.name}", devices=[one["id"] for one in given]
                )
        return answer

    async def give(self, claim):
        """The claim's devices of this driver; the same for every call. Raises ValueError where one
        is another claim's already.
        """
        prepared = self.prepared()
        if claim.uid in prepared:
            return prepared[claim.uid]
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        made = await asyncio.to_thread(self.api, "GET", path)
        if made["metadata"]["uid"] != claim.uid:
            raise ValueError(
                f"is another claim by now ({made['metadata']['uid']}, not {claim.uid})"
            )
        allocated = made["status"]["allocation"]["devices"]
        results, config = allocated["results"], self.config(allocated)
        mine = [
            one for one in results if (one["driver"], one["pool"]) == (self.name, self.node.name)
        ]
        offered = self.offers(self.node)
        given = [
            {
                "request": one["request"],
                "device": one["device"],
                "id": offered[one["device"]],
                "admin": bool(one.get("adminAccess")),  # looks at a device that may be another's
            }
            for one in mine
        ]
        taken = {
            one["device"] for others in prepared.values() for one in others if not one["admin"]
        }
        if twice := sorted(taken & {one["device"] for one in given if not one["admin"]}):
            raise ValueError(f"{', '.join(twice)} is another claim's")
        devices = [
            {
                "name": f"{claim.uid}-{one['device']}",
                "containerEdits": self.edits(self.node, one["device"], one["id"], config),
            }
            for one in given
        ]
        CDI.mkdir(parents=True, exist_ok=True)
        spec = {"cdiVersion": "0.5.0", "kind": f"{self.name}/claim", "devices": devices}
        replace(self.cdi(claim.uid), spec)
        replace(self.state, {**prepared, claim.uid: given})
        return given

    def config(self, allocated):
        """The parameters for this driver in an allocation, of which the last wins."""
        opaque = [one.get("opaque", {}) for one in allocated.get("config", [])]
        found = [one["parameters"] for one in opaque if one.get("driver") == self.name]
        return found[-1] if found else {}

    async def unprepare(self, request, context):
        answer = dra.NodeUnprepareResourcesResponse()
        async with self.lock:
            for claim in request.claims:
                prepared = self.prepared()
                self.cdi(claim.uid).unlink(missing_ok=True)
                if prepared.pop(claim.uid, None) is not None:
                    replace(self.state, prepared)
                    self.tell(unprepared=f"{claim.namespace}/{claim.name}")
                answer.claims[claim.uid].error = ""
        return answer

    def prepared(self):
        return json.loads(self.state.read_text()) if self.state.exists() else {}

    def cdi(self, uid):
        return CDI / f"{self.name}-claim-{uid}.json"

    # --- the kubelet's way here

    async def GetInfo(self, request, context):
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self.name,
            endpoint=str(self.folder / "dra.sock"),
            supported_versions=[f"{version}.DRAPlugin" for version in VERSIONS],
        )

    async def NotifyRegistrationStatus(self, request, context):
        self.tell(registered=self.name if request.plugin_registered else False, why=request.error)
        return registration.RegistrationStatusResponse()

    async def run(self):
        """Serve until cancelled. The kubelet finds the socket in its registry, now and whenever it
        is started again.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        service, registrar = grpc.aio.server(), grpc.aio.server()
        for version in VERSIONS:  # alike but for the name
            methods = {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    self.prepare,
                    dra.NodePrepareResourcesRequest.FromString,
                    dra.NodePrepareResourcesResponse.SerializeToString,
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    self.unprepare,
                    dra.NodeUnprepareResourcesRequest.FromString,
                    dra.NodeUnprepareResourcesResponse.SerializeToString,
                ),
            }
            name = f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin"
            service.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        registration_grpc.add_RegistrationServicer_to_server(self, registrar)
        for server, socket in (
            (service, self.folder / "dra.sock"),
            (registrar, REGISTRY / f"{self.name}-reg.sock"),
        ):
            socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{socket}")
            await server.start()
        try:
            while True:
                # Again and again: a kubelet that starts takes away the slices of its node.
                with contextlib.suppress(OSError):
                    await self.publish()
                await asyncio.sleep(2)
        finally:
            await registrar.stop(0)
            await service.stop(0)


class OnDemand(Driver):
    """A driver that the kubelet knows of only while its node has devices for it: beside it the real
    one may be installed.
    """

    async def run(self):
        while True:
            await self.becomes(True)
            serving = asyncio.create_task(super().run())
            try:
                await self.becomes(False)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                (REGISTRY / f"{self.name}-reg.sock").unlink(missing_ok=True)

    async def becomes(self, offering):
        while bool(self.offers(self.node)) != offering:
            await asyncio.sleep(0.2)


def replace(path, content):
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


def drivers(node, tell, api, found):
    return [
        Driver("gpu.nvidia.com", node, tell, api, found, gpus_of, gpu_edits),
        Driver("rdma.nvidia.com", node, tell, api, found, nics_of, nic_edits),
        OnDemand(
            "compute-domain.nvidia.com", node, tell, api, found, channels_of, channel_edits, channel
        ),
    ]
