"""A control plane with the controllers that make and remove what a wrapper's components own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from preflight_appwrapper.api.crd import crd
from preflight_testing.apiserver import ApiServer

CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "ttl-after-finished-controller",
)


@contextmanager
def control_plane(home: Path, assets: Path, *, more: Sequence[str] = ()) -> Iterator[ApiServer]:
    """``more``: further arguments of kube-apiserver."""
    (home / "api").mkdir()
    with ApiServer(home / "api", assets, authorization="RBAC", more=more) as server:
        server.define(crd())
        kubeconfig = server.kubeconfig(home / "kubeconfig")
        command = [
            str(assets / "kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ]
        with (home / "kube-controller-manager.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield server
        finally:
            process.kill()
            process.wait()
