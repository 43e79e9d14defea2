"""What a check inherits of a workload that names and mounts files comes to a path of ours, on a
real kubelet: nothing else of its image changes.

Needs KUBECONFIG and the webhook's image (PREFLIGHT_WEBHOOK_IMAGE, `preflight-webhook:dev` unless
set), which plays check and workload.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.installed_release import Installed, until
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(300)

GPU = "inherited.example.com/gpu"
IMAGE = os.environ.get("PREFLIGHT_WEBHOOK_IMAGE", "preflight-webhook:dev")
CHECK = "preflight-nccl-loopback"
OURS = "/etc/preflight-topology"
PRELOADED = "/evil/preloaded.so"
"""What the tenant's file holds: as ld.so.preload the dynamic linker says of it, for every program,
that it cannot be preloaded.
"""
HOSTILE = [
    "/etc/ld.so.preload",
    "/etc/nccl.conf",
    "/etc/hosts",
    "/etc/passwd",
    "/opt/venv/lib/python3.11/site-packages/sitecustomize.py",
    "/opt/venv/bin/all_reduce_perf",
    "/usr/lib/x86_64-linux-gnu/libnccl-net.so",
    "/usr/local/lib/python3.11/json/__init__.py",
    "/var/run/nvsentinel/nvsentinel.sock",
    "/proc/../etc/ld.so.preload",
    f"{OURS}/../ld.so.preload",
]
"""Paths at which a file would be code, settings or a socket, in a check's image or beside it."""
SEES = """
import json, os
mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
def holds(path):
    try:
        return open(path).read()
    except OSError:
        return None
where = os.environ.get("NCCL_TOPO_FILE")
print("SEES " + json.dumps({"topology": where, "content": where and holds(where), "shm": sorted(os.listdir("/dev/shm")),
    "mounts": mounts, "preload": holds("/etc/ld.so.preload"), "maps": open("/proc/self/maps").read().count("/evil/")}))
"""
"""A program that prints what the container it runs in sees of files."""


@pytest.fixture
def devices(fresh: Installed) -> Any:
    """Every node has GPUs of a kind of its own, of which no device plugin knows."""
    api: Any = client.CoreV1Api(client.ApiClient())
    path = {"path": "/status/capacity/" + GPU.replace("/", "~1")}
    nodes = [node.metadata.name for node in api.list_node().items]
    for node in nodes:
        api.patch_node_status(node, [{"op": "add", "value": "16", **path}])
    yield
    for node in nodes:
        api.patch_node_status(node, [{"op": "remove", **path}])


def installed(made: Installed) -> str:
    """An injector whose one check inherits as the NCCL checks do, and prints what it sees; the name
    of an opted-in namespace.
    """
    check = {
        "name": "nccl-loopback",
        "image": IMAGE,
        "container": {"command": ["python3", "-c", SEES], "args": None},
    }
    values = {
        "gpuDetection": {"resourceNames": [GPU]},
        "skipNcclWithoutNetwork": False,
        "replicas": 1,
    }
    made.release.install(made.with_values(checks=[check], **values))
    until(made.published, "the CA bundle")
    name = made.namespace(
        **{"preflight-e2e": made.name, "nvsentinel.nvidia.com/preflight": "enabled"}
    )
    until(lambda: bool(made.api.list_namespaced_service_account(name).items), "the default account")

    def injected() -> bool:
        try:
            found = made.api.create_namespaced_pod(name, pod("probe", [], []), dry_run="All")
        except client.ApiException:
            return False
        return [one.name for one in found.spec.init_containers or []] == [CHECK]

    until(injected, f"injection in {name}")
    made.api.create_namespaced_config_map(
        name, {"metadata": {"name": "evil"}, "data": {"file": PRELOADED + "\n"}}
    )
    return name


def pod(name: str, mounts: list[Object], volumes: list[Object], **env: str) -> Object:
    container = {
        "name": "train",
        "image": IMAGE,
        "command": ["python3", "-c", SEES],
        "resources": {"limits": {GPU: "1"}},
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "volumeMounts": mounts,
    }
    body = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": {"name": name}, "spec": body}


def log(made: Installed, namespace: str, name: str, container: str) -> str:
    """What a container printed, once it has ended."""
    of = "init_container_statuses" if container == CHECK else "container_statuses"

    def over() -> bool:
        status = made.api.read_namespaced_pod(name, namespace).status
        return any(
            one.name == container and one.state.terminated for one in getattr(status, of) or []
        )

    until(over, f"the end of {container} of {name}")
    read = made.api.read_namespaced_pod_log
    return str(read(name, namespace, container=container, _preload_content=False).data.decode())


def seen(text: str) -> Any:
    [line] = [line for line in text.splitlines() if line.startswith("SEES ")]
    return json.loads(line.removeprefix("SEES "))


EVIL: Object = {"name": "evil", "configMap": {"name": "evil"}}


def test_a_topology_file_named_at_any_path_comes_to_ours_and_nowhere_else(
    fresh: Installed, devices: None
) -> None:
    namespace = installed(fresh)
    create, read = fresh.api.create_namespaced_pod, fresh.api.read_namespaced_pod
    create(namespace, pod("plain", [], []))
    for number, path in enumerate(HOSTILE):
        mount = {"name": "evil", "mountPath": os.path.normpath(path), "subPath": "file"}
        create(namespace, pod(f"p-{number}", [mount], [EVIL], NCCL_TOPO_FILE=path))
    usual = set(seen(log(fresh, namespace, "plain", CHECK))["mounts"])
    for number, path in enumerate(HOSTILE):
        name, file = f"p-{number}", f"{OURS}/{path.rpartition('/')[2]}"
        [check] = read(name, namespace).spec.init_containers
        [moved] = [one for one in check.volume_mounts if one.name == "evil"]
        assert (moved.mount_path, moved.read_only) == (file, True), path
        text = log(fresh, namespace, name, CHECK)
        sees = seen(text)
        assert (sees["topology"], sees["content"]) == (file, PRELOADED + "\n"), path
        assert set(sees["mounts"]) - usual == {file}, path
        assert (sees["preload"], sees["maps"]) == (None, 0), path
        assert "cannot be preloaded" not in text, path


def test_where_the_workload_mounts_it_the_same_file_is_preloaded(
    fresh: Installed, devices: None
) -> None:
    """That the test above could fail: the dynamic linker of the workload's own container says what
    it was told to load.
    """
    namespace = installed(fresh)
    mount = {"name": "evil", "mountPath": "/etc/ld.so.preload", "subPath": "file"}
    fresh.api.create_namespaced_pod(
        namespace, pod("own", [mount], [EVIL], NCCL_TOPO_FILE="/etc/ld.so.preload")
    )
    assert f"object '{PRELOADED}' from /etc/ld.so.preload cannot be preloaded" in log(
        fresh, namespace, "own", "train"
    )
    assert "cannot be preloaded" not in log(fresh, namespace, "own", CHECK)


SHM: Object = {"name": "v", "mountPath": "/dev/shm"}


def test_shared_memory_is_inherited_from_memory_alone(fresh: Installed, devices: None) -> None:
    namespace = installed(fresh)
    create = fresh.api.create_namespaced_pod
    volumes: dict[str, Object] = {
        "config": {"configMap": {"name": "evil"}},
        "projected": {"projected": {"sources": [{"configMap": {"name": "evil"}}]}},
        "disk": {"emptyDir": {}},
        "memory": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    }
    for name, volume in volumes.items():
        create(namespace, pod(name, [SHM], [{"name": "v", **volume}]))
    claimed = {"name": "v", "persistentVolumeClaim": {"claimName": "none"}}
    found = create(namespace, pod("claimed", [SHM], [claimed]), dry_run="All")
    mounts = {name: _of_check(fresh, namespace, name) for name in volumes}
    mounts["claimed"] = found.spec.init_containers[0].volume_mounts
    inherited = {name: "v" in {one.name for one in every or []} for name, every in mounts.items()}
    assert inherited == {
        "config": False,
        "projected": False,
        "disk": False,
        "claimed": False,
        "memory": True,
    }
    for name in volumes:
        assert seen(log(fresh, namespace, name, CHECK))["shm"] == [], name


def _of_check(made: Installed, namespace: str, name: str) -> Any:
    return made.api.read_namespaced_pod(name, namespace).spec.init_containers[0].volume_mounts
