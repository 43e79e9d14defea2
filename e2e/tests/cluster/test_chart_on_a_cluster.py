"""The chart installed for real: what only an API server, kubelets and Helm together can show.

Needs KUBECONFIG and the webhook's image (PREFLIGHT_WEBHOOK_IMAGE, `preflight-webhook:dev` unless set) on the nodes.
Every test installs a release of its own, under names of its own, and removes it.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client, config
from preflight_e2e.helm import Release, Values

pytestmark = pytest.mark.timeout(240)

GPU_POD = {
    "metadata": {"generateName": "gpu-"},
    "spec": {
        "containers": [{"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}


class Installed:
    """A release with names of its own, and the few questions that tests ask about it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.name = f"pf-{uuid.uuid4().hex[:6]}"
        self.release = Release(self.name, kubeconfig)
        # The client's stubs know neither plain dicts as bodies nor that the server fills in what it has stored.
        self.api: Any = client.CoreV1Api()
        self.batch: Any = client.BatchV1Api()
        self.admission: Any = client.AdmissionregistrationV1Api()
        self.rbac: Any = client.RbacAuthorizationV1Api()
        self.namespaces: list[str] = []
        repository, _, tag = os.environ.get("PREFLIGHT_WEBHOOK_IMAGE", "preflight-webhook:dev").rpartition(":")
        self.values = {
            "enabled": True,
            "fullnameOverride": self.name,
            "image": {"repository": repository, "tag": tag},
        }

    def with_values(self, **values: Any) -> Values:
        return {"preflight-injector": {**self.values, **values}}

    def namespace(self, **labels: str) -> str:
        """A new namespace; the webhooks' own cache of namespaces has to see it before it counts."""
        name = f"{self.name}-{len(self.namespaces)}"
        self.api.create_namespace({"metadata": {"name": name, "labels": labels}})
        self.namespaces.append(name)
        return name

    def opted_in(self) -> str:
        """A namespace in which pods are injected by now."""
        name = self.namespace(**{"nvsentinel.nvidia.com/preflight": "enabled"})
        until(lambda: self.created(name) == ["preflight-dcgm-diag"], f"injection in {name}")
        return name

    def created(self, namespace: str) -> list[str] | str:
        """Names of the init containers that a GPU pod would get, or why it is refused."""
        try:
            pod = self.api.create_namespaced_pod(namespace, GPU_POD, dry_run="All")
        except client.ApiException as error:
            return str(json.loads(error.body or "{}").get("message"))
        return [container.name for container in pod.spec.init_containers or []]

    def secret(self) -> dict[str, bytes]:
        data = self.api.read_namespaced_secret(f"{self.name}-tls", self.name).data
        return {key: base64.b64decode(value) for key, value in data.items()}

    def bundles(self) -> list[bytes]:
        found = self.admission.read_mutating_webhook_configuration(self.name)
        return [base64.b64decode(w.client_config.ca_bundle or "") for w in found.webhooks]

    def published(self) -> bool:
        """Every entry trusts exactly what the Secret says."""
        return set(self.bundles()) == {self.secret()["ca.crt"]}


def until(holds: Callable[[], bool], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


@pytest.fixture
def fresh() -> Iterator[Installed]:
    """Names for a release that is not there yet; whatever a test leaves is removed."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Installed(Path(kubeconfig))
    yield made
    made.release.uninstall()
    for name in [made.name, *made.namespaces]:
        with suppress(client.ApiException):
            made.api.delete_namespace(name)


@pytest.fixture
def installed(fresh: Installed) -> Installed:
    fresh.release.install(fresh.with_values())
    until(fresh.published, "the CA bundle")
    return fresh


def test_gpu_pods_are_injected_where_opted_in_and_nowhere_else(fresh: Installed) -> None:
    listed = fresh.namespace()
    fresh.release.install(fresh.with_values(namespaces=[listed]))
    until(fresh.published, "the CA bundle")
    until(lambda: fresh.created(listed) == ["preflight-dcgm-diag"], "injection by list")
    fresh.opted_in()
    assert fresh.created(fresh.namespace()) == []
    assert fresh.created(fresh.namespace(**{"nvsentinel.nvidia.com/preflight": "disabled"})) == []
    assert fresh.created(fresh.name) == []


def test_certificates_survive_an_upgrade_and_reach_a_new_entry(installed: Installed) -> None:
    before = installed.secret()
    installed.release.upgrade(installed.with_values(namespaces=["training"]))
    until(lambda: len(installed.bundles()) == 2 and installed.published(), "the CA bundle of the new entry")
    assert installed.secret() == before


def test_an_entry_that_an_upgrade_drops_is_gone(fresh: Installed) -> None:
    fresh.release.install(fresh.with_values(namespaces=["training"]))
    until(lambda: len(fresh.bundles()) == 2 and fresh.published(), "the CA bundles")
    fresh.release.upgrade(fresh.with_values())
    assert fresh.bundles() == [fresh.secret()["ca.crt"]]


def test_no_pod_is_refused_or_missed_while_replicas_are_replaced(installed: Installed) -> None:
    namespace = installed.opted_in()
    seen: Counter[str] = Counter()
    enough = threading.Event()

    def create() -> None:
        while not enough.is_set():
            seen[str(installed.created(namespace))] += 1

    thread = threading.Thread(target=create)
    thread.start()
    for seconds in (301, 302):
        installed.release.upgrade(installed.with_values(checkTimeout=f"{seconds}s"))
    until(lambda: not terminating(installed), "the end of old replicas")
    enough.set()
    thread.join()
    assert list(seen) == ["['preflight-dcgm-diag']"], seen


def terminating(installed: Installed) -> list[str]:
    pods = installed.api.list_namespaced_pod(installed.name, label_selector="app.kubernetes.io/component=webhook").items
    return [pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp]


def test_an_ageing_certificate_is_renewed_and_the_old_authority_stays_trusted(fresh: Installed) -> None:
    old = aged(f"{fresh.name}.{fresh.name}.svc")
    fresh.api.create_namespace({"metadata": {"name": fresh.name}})
    fresh.api.create_namespaced_secret(
        fresh.name,
        {
            "metadata": {
                "name": f"{fresh.name}-tls",
                "labels": {"app.kubernetes.io/managed-by": "preflight-webhook-certs"},
            },
            "type": "kubernetes.io/tls",
            "data": {key: base64.b64encode(value).decode() for key, value in old.items()},
        },
    )
    fresh.release.install(fresh.with_values())
    until(fresh.published, "the CA bundle")
    renewed = fresh.secret()
    assert renewed["tls.crt"] != old["tls.crt"]
    assert old["ca.crt"] in renewed["ca.crt"]
    fresh.opted_in()


def aged(name: str) -> dict[str, bytes]:
    """A served pair and its authority, 61 of 90 days old."""
    now = datetime.now(UTC)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "aged authority")])

    def signed(subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=61))
            .not_valid_after(now + timedelta(days=29))
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    return {
        "ca.crt": signed(authority_name, authority_key.public_key(), x509.BasicConstraints(ca=True, path_length=0)),
        "tls.crt": signed(x509.Name([]), key.public_key(), x509.SubjectAlternativeName([x509.DNSName(name)])),
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }


def test_a_lost_ca_bundle_is_set_again_by_the_schedule(installed: Installed) -> None:
    found = installed.admission.read_mutating_webhook_configuration(installed.name)
    for entry in found.webhooks:
        entry.client_config.ca_bundle = None
    installed.admission.replace_mutating_webhook_configuration(installed.name, found)
    template = installed.batch.read_namespaced_cron_job(f"{installed.name}-certs", installed.name).spec.job_template
    installed.batch.create_namespaced_job(installed.name, {"metadata": {"name": "now"}, "spec": template.spec})
    until(installed.published, "the CA bundle")


def test_uninstall_leaves_nothing(installed: Installed) -> None:
    installed.release.uninstall()
    for left in (
        installed.api.list_namespaced_secret,
        installed.api.list_namespaced_pod,
        installed.rbac.list_namespaced_role,
        installed.batch.list_namespaced_job,
    ):
        until(lambda left=left: not left(installed.name).items, left.__name__)  # type: ignore[misc]
    for everywhere in (
        installed.admission.list_mutating_webhook_configuration,
        installed.rbac.list_cluster_role,
        installed.rbac.list_cluster_role_binding,
    ):
        assert [o.metadata.name for o in everywhere().items if o.metadata.name.startswith(installed.name)] == []
