"""The chart installed for real: what only an API server, kubelets and Helm together can show.

Needs KUBECONFIG and the webhook's image (PREFLIGHT_WEBHOOK_IMAGE, `preflight-webhook:dev` unless
set) on the nodes. Every test installs a release of its own, under names of its own, and removes it.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client
from preflight_e2e.installed_release import Installed, until

pytestmark = pytest.mark.timeout(240)


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
    until(
        lambda: len(installed.bundles()) == 4 and installed.published(),
        "the CA bundle of the new entry",
    )
    assert installed.secret() == before


def test_an_entry_that_an_upgrade_drops_is_gone(fresh: Installed) -> None:
    fresh.release.install(fresh.with_values(namespaces=["training"]))
    until(lambda: len(fresh.bundles()) == 4 and fresh.published(), "the CA bundles")
    fresh.release.upgrade(fresh.with_values())
    assert fresh.bundles() == [fresh.secret()["ca.crt"]] * 2


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


def doctor(installed: Installed) -> list[str]:
    """What `preflight doctor install` says of this release, as its user runs it."""
    program = Path(sys.executable).with_name("preflight")
    ended = subprocess.run(
        [program, "doctor", "install", "-o", "json"], capture_output=True, text=True, check=False
    )
    told = [f"{one['where']} {one['what']}" for one in json.loads(ended.stdout)["problems"]]
    return [line for line in told if installed.name in line]


def test_doctor_finds_nothing_in_a_release_that_works_and_what_is_broken_afterwards(
    installed: Installed,
) -> None:
    until(lambda: doctor(installed) == [], "nothing is wrong")
    apps: Any = client.AppsV1Api()
    apps.patch_namespaced_deployment_scale(
        installed.name, installed.name, {"spec": {"replicas": 0}}
    )
    installed.rbac.delete_cluster_role(installed.name)
    until(lambda: len(doctor(installed)) == 2, "both are told")
    [gone, unanswered] = doctor(installed)
    release = f"release {installed.name}/preflight"
    assert gone == f"ClusterRole {installed.name} of {release} is not there"
    assert "behind which no pod is ready: what it would look at is refused" in unanswered


def terminating(installed: Installed) -> list[str]:
    pods = installed.api.list_namespaced_pod(
        installed.name, label_selector="app.kubernetes.io/component=webhook"
    ).items
    return [pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp]


def test_an_ageing_certificate_is_renewed_and_the_old_authority_stays_trusted(
    fresh: Installed,
) -> None:
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

    def signed(
        subject: x509.Name, public: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType
    ) -> bytes:
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
        "ca.crt": signed(
            authority_name,
            authority_key.public_key(),
            x509.BasicConstraints(ca=True, path_length=0),
        ),
        "tls.crt": signed(
            x509.Name([]), key.public_key(), x509.SubjectAlternativeName([x509.DNSName(name)])
        ),
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }


def test_a_lost_ca_bundle_is_set_again_by_the_schedule(installed: Installed) -> None:
    found = installed.admission.read_mutating_webhook_configuration(installed.name)
    for entry in found.webhooks:
        entry.client_config.ca_bundle = None
    installed.admission.replace_mutating_webhook_configuration(installed.name, found)
    template = installed.batch.read_namespaced_cron_job(
        f"{installed.name}-certs", installed.name
    ).spec.job_template
    installed.batch.create_namespaced_job(
        installed.name, {"metadata": {"name": "now"}, "spec": template.spec}
    )
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
        assert [
            o.metadata.name
            for o in everywhere().items
            if o.metadata.name.startswith(installed.name)
        ] == []
