"""The device plugin: the node's GPUs, as the kubelet hands them out."""

import asyncio
from pathlib import Path

import deviceplugin_pb2 as dp
import deviceplugin_pb2_grpc as dp_grpc
import grpc

PLUGINS = Path("/var/lib/kubelet/device-plugins")


class Plugin(dp_grpc.DevicePluginServicer):
    def __init__(self, node, tell):
        self.node, self.tell = node, tell

    async def GetDevicePluginOptions(self, request, context):
        return dp.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request, context):
        while True:
            changed = (
                self.node.changed
            )  # before looking: what changes while this is sent must not be missed
            claimed = self.node.facts.get("dra", {}).get("gpus", [])  # the DRA driver's to give
            mine = [gpu["uuid"] for gpu in self.node.facts["gpus"] if gpu["uuid"] not in claimed]
            if self.node.facts.get("plugin") == "absent":
                mine = []  # of a plugin that is gone the kubelet goes on to advertise none
            devices = [dp.Device(ID=uuid, health="Healthy") for uuid in mine]
            yield dp.ListAndWatchResponse(devices=devices)
            await changed.wait()

    async def GetPreferredAllocation(self, request, context):
        """Lowest index first, so that a test knows which GPUs a second pod gets."""
        order = [gpu["uuid"] for gpu in self.node.facts["gpus"]]
        answers = []
        for wanted in request.container_requests:
            must = list(wanted.must_include_deviceIDs)
            rest = sorted(set(wanted.available_deviceIDs) - set(must), key=order.index)
            answers.append(
                dp.ContainerPreferredAllocationResponse(
                    deviceIDs=(must + rest)[: wanted.allocation_size]
                )
            )
        return dp.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request, context):
        """What NVIDIA's toolkit does: names the devices, brings the driver's library."""
        local, library = self.node.local, "libnvidia-ml.so.1"
        mounts = [
            dp.Mount(container_path=str(local), host_path=str(local), read_only=True),
            dp.Mount(
                container_path=f"/usr/lib/x86_64-linux-gnu/{library}",
                host_path=str(local / library),
                read_only=True,
            ),
        ]
        answers = [
            dp.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(r.devices_ids)}, mounts=mounts
            )
            for r in request.container_requests
        ]
        self.tell(allocated=[list(r.devices_ids) for r in request.container_requests])
        return dp.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request, context):
        return dp.PreStartContainerResponse()


async def run_plugin(node, tell):
    """Serve, register, and register again when the kubelet has restarted (it clears its plugin
    folder).
    """
    name = "fake-gpu.sock"
    while True:
        server = grpc.aio.server()
        dp_grpc.add_DevicePluginServicer_to_server(Plugin(node, tell), server)
        (PLUGINS / name).unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{PLUGINS / name}")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix://{PLUGINS / 'kubelet.sock'}") as channel:
                options = dp.DevicePluginOptions(get_preferred_allocation_available=True)
                await dp_grpc.RegistrationStub(channel).Register(
                    dp.RegisterRequest(
                        version="v1beta1",
                        endpoint=name,
                        resource_name="nvidia.com/gpu",
                        options=options,
                    ),
                    timeout=5,
                )
            tell(registered="nvidia.com/gpu")
            while (PLUGINS / name).exists():
                await asyncio.sleep(1)
        except grpc.aio.AioRpcError as error:
            tell(registered=False, why=error.details())
            await asyncio.sleep(1)
        finally:
            await server.stop(0)
