"""The cluster's authority is replaced while we run: as a ServiceAccount has it, and by a kubeconfig
that names files.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import anyio
import pytest
import trustme
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kube_world import Item, going, names, serving
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client import transport
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime import reflector
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.workqueue import Backoff
from preflight_testing.apidouble import ApiDouble
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


def as_service_account(folder: Path, double: ApiDouble) -> Connection:
    (folder / "token").write_text("t")
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(double.port)}
    return connection(environ, folder)


def by_kubeconfig(folder: Path, double: ApiDouble, **more: str) -> Connection:
    cluster = {"server": double.url, "certificate-authority": str(folder / "ca.crt"), **more}
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return connection({"KUBECONFIG": str(folder / "kubeconfig")})


async def reads(target: Connection) -> None:
    async with Client(target, agent="tests", attempts=1) as client:
        await client.get("/api/v1/namespaces/default", Item)


@pytest.mark.parametrize("reach", [as_service_account, by_kubeconfig])
async def test_after_the_authority_was_replaced_reads_and_watches_go_on(
    reach: Callable[[Path, ApiDouble], Connection],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reflector, "BACK_OFF", Backoff(0.01, 0.01))
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(tmp_path / "ca.crt")
    with ApiDouble(tls=serving(old)) as double:
        async with Client(reach(tmp_path, double), agent="tests", attempts=1) as client:
            mirror = Reflector(client, "/api/v1/namespaces", Item, watch_seconds=1)
            async with going(mirror.run):
                await until(
                    lambda: client.mirrors.behind() == {"/api/v1/namespaces": 0.0}, "it follows"
                )
                double._tls = serving(new)
                await anyio.to_thread.run_sync(double.restart)
                await until(
                    lambda: "CERTIFICATE_VERIFY_FAILED" in str(mirror.problem), "it is not trusted"
                )
                with pytest.raises(KubeError, match="CERTIFICATE_VERIFY_FAILED"):
                    await client.get("/api/v1/namespaces/default", Item)
                (tmp_path / "ca.crt").write_text("half writ")
                with pytest.raises(KubeError):
                    await client.get("/api/v1/namespaces/default", Item)
                new.cert_pem.write_to_path(tmp_path / "ca.crt")
                while True:  # the mirror may just have read what was half written
                    with suppress(KubeError):
                        await client.get("/api/v1/namespaces/default", Item)
                        break
                double.within(lambda: double.create("namespaces", {"metadata": {"name": "later"}}))
                await until(lambda: "later" in names(mirror.store.values()), "the mirror goes on")


async def test_an_authority_that_is_trusted_no_longer_is_dropped_without_a_failure_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRUST_AGE", 0.0)
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(tmp_path / "ca.crt")
    with ApiDouble(tls=serving(old)) as double:
        target = as_service_account(tmp_path, double)
        async with Client(target, agent="tests", attempts=1) as client:
            await client.get("/api/v1/namespaces/default", Item)
            new.cert_pem.write_to_path(tmp_path / "ca.crt")
            with pytest.raises(KubeError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("/api/v1/namespaces/default", Item)


async def test_an_intermediate_authority_is_enough_to_trust_the_server(tmp_path: Path) -> None:
    intermediate = trustme.CA().create_child_ca()
    intermediate.cert_pem.write_to_path(tmp_path / "ca.crt")
    with ApiDouble(tls=serving(intermediate)) as double:
        for reach in (as_service_account, by_kubeconfig):
            await reads(reach(tmp_path, double))


def without_identifiers(folder: Path) -> ssl.SSLContext:
    """What serves with a certificate whose authority, ``ca.crt`` in ``folder``, says of itself that
    it is one and nothing more.
    """
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kubernetes")])
    made = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .public_key(key.public_key())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
    authority = (
        made.subject_name(name)
        .serial_number(1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    leaf = (
        made.subject_name(x509.Name([]))
        .serial_number(2)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=True
        )
        .sign(key, hashes.SHA256())
    )
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "ca.crt").write_bytes(authority.public_bytes(pem))
    (folder / "tls.pem").write_bytes(
        leaf.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.pem")
    return context


async def test_an_authority_without_key_identifiers_is_trusted_where_python_is_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def strict(*args: object, **more: object) -> ssl.SSLContext:
        context = usual(*args, **more)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it
        return context

    with ApiDouble(tls=without_identifiers(tmp_path)) as double:
        monkeypatch.setattr(ssl, "create_default_context", strict)
        for reach in (as_service_account, by_kubeconfig):
            await reads(reach(tmp_path, double))


async def test_a_server_behind_another_address_shows_the_certificate_of_its_tls_server_name(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    with ApiDouble(tls=serving(authority, "api.example.com")) as double:
        await reads(by_kubeconfig(tmp_path, double, **{"tls-server-name": "api.example.com"}))
        other = by_kubeconfig(tmp_path, double, **{"tls-server-name": "other.example.com"})
        with pytest.raises(KubeError, match=r"not valid for 'other\.example\.com'"):
            await reads(other)


@contextmanager
def handshakes(context: ssl.SSLContext) -> Iterator[str]:
    """The address of a server that does handshakes as ``context`` has them, and no more."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                accepted.settimeout(60)
                tls = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
                with suppress(OSError), tls:
                    with suppress(ssl.SSLError):
                        tls.do_handshake()
                    # To the end: what is unread would make a reset of the end, before the alert.
                    while socket.socket.recv(tls, 4096):
                        pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)


async def test_a_server_that_does_not_take_our_certificate_is_no_fault_of_the_program() -> None:
    authority = trustme.CA()
    context, verify = serving(authority), ssl.create_default_context()
    authority.configure_trust(verify)
    context.verify_mode = ssl.CERT_REQUIRED
    with handshakes(context) as server:
        async with Client(Connection(server, verify), agent="tests", attempts=1) as client:
            for request in (client.get("/api", Item), client.create("/api/v1/namespaces", {})):
                with pytest.raises(KubeError, match="CERTIFICATE_REQUIRED"):
                    await request
