"""What of an installation's admission is wrong: rules of :mod:`.installation`. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from preflight_cli.cluster import (
    Installation,
    Object,
    Problem,
    about,
    key_of,
    labels_of,
    of_helm,
    part_of,
    release_of,
    secrets_of,
)

ENDING: Final = timedelta(days=14)
"""A certificate that ends sooner is told, and one that lives shortly in its last sixth: the CronJob
renews it in the last third."""
_POLICY: Final = "ValidatingAdmissionPolicy"
_BINDING: Final = "ValidatingAdmissionPolicyBinding"


def webhooks(cluster: Installation) -> Iterator[Problem]:
    """Webhooks that nobody answers, or whose certificates nobody trusts."""
    for item in cluster.of("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        bundles: set[tuple[str, str, str]] = set()
        services: set[tuple[str, str]] = set()
        for webhook in item.get("webhooks", []):
            client = webhook.get("clientConfig") or {}
            service = client.get("service") or {}
            where = f"{item['kind']} {key_of(item)[1]}"
            at = (str(service.get("namespace")), str(service.get("name")))
            bundle = client.get("caBundle") or ""
            if service and (*at, bundle) not in bundles:
                bundles.add((*at, bundle))
                yield from _bundle(cluster, where, at, bundle)
            if not service or at in services:
                continue
            services.add(at)
            if cluster.knows("Service") and cluster.named("Service", *at) is None:
                yield Problem(
                    where,
                    f"leads to Service {'/'.join(at)}, which is not there",
                    cluster.upgrade_of(release_of(item)),
                )
            elif cluster.knows("EndpointSlice") and not _ready_endpoints(cluster, *at):
                effect = (
                    "is refused" if webhook.get("failurePolicy") != "Ignore" else "is not judged"
                )
                yield Problem(
                    where,
                    f"leads to Service {'/'.join(at)}, behind which no pod is ready: what it would look at {effect}",
                    f"kubectl -n {at[0]} get pods -l app.kubernetes.io/name={part_of(item)},app.kubernetes.io/component=webhook",
                )


def _bundle(
    cluster: Installation, where: str, at: tuple[str, str], bundle: str
) -> Iterator[Problem]:
    """What is wrong about the authorities that the API server trusts for the Service ``at``."""
    renew = cluster.renewal_of(at[0], f"kubectl describe {where.lower()}")
    if not bundle:
        yield Problem(where, "has no caBundle: the API server trusts no certificate of it", renew)
        return
    try:
        trusted = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except ValueError:
        yield Problem(where, "has a caBundle that is no certificate", renew)
        return
    if max(certificate.not_valid_after_utc for certificate in trusted) < cluster.now:
        yield Problem(where, "trusts authorities that have all ended", renew)
        return
    for secret in cluster.of("Secret"):
        if of_helm(secret) or key_of(secret)[0] != at[0] or not _serves(cluster, secret, at):
            continue
        name = f"Secret {'/'.join(key_of(secret))}"
        renew = cluster.renewal_of(at[0], f"kubectl -n {at[0]} describe secret {key_of(secret)[1]}")
        try:
            [served, *between] = x509.load_pem_x509_certificates(
                base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))
            )
        except (ValueError, binascii.Error):
            yield Problem(name, "has no certificate in tls.crt", renew)
            continue
        left = served.not_valid_after_utc - cluster.now
        if left < timedelta():
            yield Problem(name, f"has a certificate that ended {-left.days} days ago", renew)
        elif left < min(ENDING, (served.not_valid_after_utc - served.not_valid_before_utc) / 6):
            yield Problem(name, f"has a certificate that ends in {left.days} days", renew)
        authorities = list(trusted)
        for certificate in reversed(between):
            if any(_signed(certificate, by) for by in authorities):
                authorities.append(certificate)
        if not any(_signed(served, by) for by in authorities):
            yield Problem(name, f"has a certificate that no authority of {where} signed", renew)


def _serves(cluster: Installation, secret: Object, at: tuple[str, str]) -> bool:
    """Whether a pod behind the Service ``at`` mounts the Secret."""
    service = cluster.named("Service", *at) or {}
    selector = ((service.get("spec") or {}).get("selector") or {}).items()
    return any(
        key_of(secret)[1] in secrets_of(item)
        for item in cluster.of("Deployment")
        if selector and selector <= labels_of(item["spec"]["template"]).items()
    )


def _signed(served: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        served.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _ready_endpoints(cluster: Installation, namespace: str, service: str) -> int:
    return sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for item in cluster.of("EndpointSlice")
        if key_of(item)[0] == namespace
        and labels_of(item).get("kubernetes.io/service-name") == service
        for endpoint in item.get("endpoints") or []
    )


def policies(cluster: Installation) -> Iterator[Problem]:
    """Policies that refuse nothing."""
    bound = {item["spec"].get("policyName") for item in cluster.of(_BINDING)}
    there = {key_of(item)[1] for item in cluster.of(_POLICY)}
    for item in cluster.of(_POLICY, _BINDING):
        kind, what = item["kind"], ""
        of = key_of(item)[1] if kind == _POLICY else item["spec"].get("policyName")
        if kind == _POLICY and cluster.knows(_BINDING) and of not in bound:
            what = "is bound nowhere, so it refuses nothing"
        elif kind == _BINDING and cluster.knows(_POLICY) and of not in there:
            what = f"binds the policy {of}, which is not there"
        if what:
            yield Problem(about(item), what, cluster.upgrade_of(release_of(item)))
