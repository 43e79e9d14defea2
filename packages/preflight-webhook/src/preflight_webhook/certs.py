"""``preflight-webhook certs``: keep the admission endpoint's certificate fresh and believed.

One Secret holds what is served (``tls.crt``, ``tls.key``) and what is to be trusted (``ca.crt``); the CA bundle of
every entry of the webhook configuration follows ``ca.crt``. Running it again changes nothing until two thirds of the
certificate's life are over. The order of writes leaves no gap: a new authority is published first, its certificate is
stored when API servers have had time to see it, and only then are bundles set to exactly what the Secret says.

The Secret is this command's own, not the Helm release's, so an upgrade leaves it alone. It is owned by the
ServiceAccount that made it and is therefore garbage-collected when the release's ServiceAccount is removed.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from preflight_kube.admission.certificates import Keep, Material, Renew, issue, plan, service_names, union
from preflight_proto.names import MANAGED_BY_LABEL

from . import logs
from .cluster.kube import Client, Conflict, Connection, KubeError, Object, connection

MANAGER = "preflight-webhook-certs"
"""Value of the managed-by label: a Secret without it is somebody else's and is left alone."""

ATTEMPTS = 10
"""How often a write that lost against another writer is tried again."""

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """Whose certificate is kept, and where it is published."""

    namespace: str
    secret: str
    service: str
    webhook_configuration: str
    lifetime: timedelta = timedelta(days=90)

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names that the certificate must be good for."""
        return service_names(self.service, self.namespace)

    @property
    def secrets_path(self) -> str:
        """The collection that the Secret lives in."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    @property
    def configuration_path(self) -> str:
        """The MutatingWebhookConfiguration."""
        return f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.webhook_configuration}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options; names default to the chart's."""
    parser.add_argument("--namespace", required=True, help="namespace of the webhook's Service and Secret")
    parser.add_argument("--service", default="preflight-injector", help="the webhook's Service (%(default)s)")
    parser.add_argument("--secret", default="preflight-injector-tls", help="Secret to keep (%(default)s)")
    parser.add_argument(
        "--webhook-configuration",
        default="preflight-injector",
        help="MutatingWebhookConfiguration whose entries get the CA bundle (%(default)s)",
    )
    parser.add_argument("--lifetime-days", type=_days, default=90, help="life of a certificate (%(default)s days)")
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=0,
        help="how long to wait for the MutatingWebhookConfiguration to appear (%(default)s s)",
    )
    parser.add_argument(
        "--settle-seconds",
        type=float,
        default=5,
        help="how long API servers get to see a new authority before its certificate is stored (%(default)s s)",
    )


def run(args: argparse.Namespace) -> int:
    """Make the cluster hold a good certificate. 0: it does; 1: it could not be done, with one sentence on stderr."""
    logs.set_up("info")
    target = Target(
        args.namespace, args.secret, args.service, args.webhook_configuration, timedelta(days=args.lifetime_days)
    )
    try:
        connected = connection()
        with Client(connected) as client:
            owner = _service_account(connected, target.namespace)
            stored = keep(client, target, owner=owner, settle_seconds=args.settle_seconds)
            publish(client, target, stored, wait_seconds=args.wait_seconds)
    except KubeError as error:
        print(f"preflight-webhook certs: {error}", file=sys.stderr)
        return 1
    return 0


def keep(
    client: Client,
    target: Target,
    *,
    owner: Object | None = None,
    now: datetime | None = None,
    settle_seconds: float = 0,
) -> Material:
    """Make sure that the Secret holds good material, and return it.

    ``owner``: the ownerReference that the Secret must carry, if any. ``settle_seconds``: between the new authority in the bundles
    and its certificate in the Secret. Raises KubeError.
    """

    def attempt() -> Material:
        moment = now or datetime.now(UTC)
        secret = client.get(f"{target.secrets_path}/{target.secret}")
        if secret is not None and secret["metadata"].get("labels", {}).get(MANAGED_BY_LABEL) != MANAGER:
            raise KubeError(
                f"Secret {target.namespace}/{target.secret} exists but is not labelled {MANAGED_BY_LABEL}={MANAGER}; "
                "delete it, or name another Secret by --secret."
            )
        stored = _material(secret)
        match plan(stored, target.names, moment):
            case Keep(renew_at=renew_at) if stored is not None:
                if secret is not None and owner is not None and owner not in _owners(secret):
                    # Left over from a release that is gone: the garbage collector would take it away from under us.
                    _write(client, target, secret, stored, owner)
                    log.info("Secret %s/%s has a new owner", target.namespace, target.secret)
                log.info("Secret %s/%s is good until %s", target.namespace, target.secret, renew_at.isoformat())
                return stored
            case Renew(reason=reason, trusted=trusted):
                fresh = issue(target.names, target.lifetime, moment, trusted, by="preflight-webhook")
                published = _set_bundles(client, target, lambda present: union(present, fresh.authorities))
                if published and stored is not None:  # else there is nobody to tell, or nothing is served yet
                    time.sleep(settle_seconds)
                _write(client, target, secret, fresh, owner)
                log.info("Secret %s/%s has a new certificate: %s", target.namespace, target.secret, reason)
                return fresh
        raise AssertionError("plan keeps only what is stored")

    return _retried(attempt)


def publish(client: Client, target: Target, stored: Material, *, wait_seconds: float = 0) -> None:
    """Set the CA bundle of every entry to what ``stored`` trusts.

    Waits up to ``wait_seconds`` for the configuration to exist: an installer may create it after this command starts.
    Raises KubeError.
    """
    end = time.monotonic() + wait_seconds
    while not _retried(lambda: _set_bundles(client, target, lambda _: stored.authorities)):
        if time.monotonic() >= end:
            raise KubeError(
                f"MutatingWebhookConfiguration {target.webhook_configuration} does not exist; "
                "install the chart, or name the right one by --webhook-configuration."
            )
        time.sleep(0.5)


def _set_bundles(client: Client, target: Target, wanted: Callable[[bytes], bytes]) -> bool:
    """Give every entry the bundle that ``wanted`` makes of its present one. False: there is no configuration."""
    configuration = client.get(target.configuration_path)
    if configuration is None:
        return False
    changes = []
    for webhook in configuration.get("webhooks", []):
        present = _decoded(webhook["clientConfig"].get("caBundle", ""))
        if (bundle := wanted(present)) != present:
            changes.append({"name": webhook["name"], "clientConfig": {"caBundle": _encoded(bundle)}})
    if changes:
        # A plain patch, not server-side apply: an applier would go on owning an entry that an upgrade removes.
        version = configuration["metadata"]["resourceVersion"]
        client.merge(target.configuration_path, {"metadata": {"resourceVersion": version}, "webhooks": changes})
        log.info("CA bundle set in %s", ", ".join(change["name"] for change in changes))
    return True


def _write(client: Client, target: Target, secret: Object | None, material: Material, owner: Object | None) -> None:
    data = {"tls.crt": material.certificate, "tls.key": material.key, "ca.crt": material.authorities}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": secret["metadata"] if secret else {"name": target.secret, "labels": {MANAGED_BY_LABEL: MANAGER}},
        "data": {name: _encoded(content) for name, content in data.items()},
    }
    if owner is not None:
        body["metadata"]["ownerReferences"] = [owner]
    try:
        if secret is None:
            client.create(target.secrets_path, body)
        else:
            client.replace(f"{target.secrets_path}/{target.secret}", body)
    except KubeError as error:
        if secret is not None and error.status == 404:
            raise Conflict(str(error), 404) from error  # deleted meanwhile: read again
        raise


def _retried(attempt: Callable[[], T]) -> T:
    for number in range(1, ATTEMPTS + 1):
        try:
            return attempt()
        except Conflict:
            if number == ATTEMPTS:
                raise
            time.sleep(random.uniform(0, 0.1 * number))  # noqa: S311 (jitter)
    raise AssertionError("unreachable")


def _material(secret: Object | None) -> Material | None:
    data = (secret or {}).get("data") or {}
    if not {"tls.crt", "tls.key", "ca.crt"} <= data.keys():
        return None
    return Material(_decoded(data["tls.crt"]), _decoded(data["tls.key"]), _decoded(data["ca.crt"]))


def _owners(secret: Object) -> list[Object]:
    owners: list[Object] = secret["metadata"].get("ownerReferences", [])
    return owners


def _service_account(connected: Connection, namespace: str) -> Object | None:
    """An ownerReference to the ServiceAccount that this runs as; None outside a pod or in another namespace.

    Read from the claims of our own token, so that no permission to read ServiceAccounts is needed.
    """
    try:
        payload = (connected.token or "").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["kubernetes.io"]
        account = claims["serviceaccount"]
        owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": account["name"], "uid": account["uid"]}
        return owner if claims["namespace"] == namespace else None
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except binascii.Error:
        return b""


def _days(text: str) -> int:
    days = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= days <= 3650:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days from 1 to 3650")
    return days
