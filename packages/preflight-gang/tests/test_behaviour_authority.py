"""A whole replica while the cluster's authority is replaced: the same process leads again, and
answers gangs.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trustme
from played import Cluster, opt_in, played
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_proto import names
from preflight_testing.apidouble import write_kubeconfig
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.waiting import until
from replica import Replica, replica

pytestmark = pytest.mark.anyio

SOON = 60.0
"""Seconds from when server and file agree until a gang is answered."""
CERTIFICATES = "the cluster's certificates were replaced"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("apiserver-authority"), folder) as server:
        yield server


class Authority:
    """Of ``server``: the file that says whom to trust, as a kubelet keeps it, and the next
    certificate.
    """

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.file, self._server, self._next = folder / "ca.crt", server, folder / "next.crt"
        shutil.copy(server.ca, self.file)

    def issue(self) -> None:
        """Lay a certificate of a new authority where the server finds it at its next start."""
        new, pki = trustme.CA(), self._server.home / "pki"
        ours = new.issue_cert("127.0.0.1")
        new.cert_pem.write_to_path(self._next)
        (pki / "apiserver.crt").write_bytes(b"".join(pem.bytes() for pem in ours.cert_chain_pems))
        ours.private_key_pem.write_to_path(pki / "apiserver.key")
        self._server.ca = self._server.home / "authority.crt"
        shutil.copy(self._next, self._server.ca)

    def replace(self) -> None:
        """Have the file name the new one."""
        self._next.rename(self.file)


@asynccontextmanager
async def _leading(
    server: ApiServer, authority: Authority, namespace: str, folder: Path
) -> AsyncIterator[tuple[Cluster, Replica]]:
    kubeconfig = write_kubeconfig(
        folder / "config", server.server, ca=authority.file, user={"token": server.token}
    )
    target: Connection = connection({"KUBECONFIG": str(kubeconfig)})
    server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    async with Client(target, agent="tests") as client:
        await opt_in(client, namespace, names.NAMESPACE_ENABLED)
        async with (
            played(client, namespace) as cluster,
            replica(target, namespace, folder / "one", kubeconfig=kubeconfig, lease=5) as one,
        ):
            await until(lambda: one.leads, "it leads")
            await cluster.pair()
            await cluster.answered("sealed", "pod-0", "pod-1")
            yield cluster, one


@pytest.mark.parametrize("first", ["the server", "the file"])
async def test_a_replica_leads_again_and_answers_when_the_cluster_s_authority_was_replaced(
    first: str, server: ApiServer, tmp_path: Path
) -> None:
    authority = Authority(server, tmp_path)
    async with _leading(server, authority, f"after-{first[4:]}", tmp_path) as (cluster, one):
        authority.issue()
        if first == "the file":
            authority.replace()
            await anyio.to_thread.run_sync(server.restart)
        else:
            await anyio.to_thread.run_sync(server.restart)
            await until(
                lambda: (
                    "CERTIFICATE_VERIFY_FAILED"
                    in str(one.said("watch failed, mirror is behind the cluster"))
                ),
                "it is not trusted",
            )
            await until(lambda: not one.leads, "it cannot renew its lease")
            assert (await one.get("/healthz")).status_code == 200
            authority.replace()
        with anyio.fail_after(SOON):
            await until(lambda: one.leads, "it leads again", SOON)
            for name, ip in (("late-0", "10.0.1.1"), ("late-1", "10.0.1.2")):
                await cluster.admit(name, gang="job-2")
                await cluster.address(name, ip)
            await cluster.answered("sealed", "late-0", "late-1", seconds=SOON)
        assert one.said(CERTIFICATES)
        assert (one.process.returncode, len(one.said("started"))) == (None, 1), (
            "it is the same process"
        )
