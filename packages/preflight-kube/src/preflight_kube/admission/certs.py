"""A command that keeps a webhook's certificate fresh and trusted.

One Secret holds what is served (``tls.crt``, ``tls.key``) and what is to be trusted (``ca.crt``);
the CA bundle of every entry of the named webhook configurations follows ``ca.crt``. Running it
again changes nothing until two thirds of the certificate's life are over. The order of writes
leaves no gap: a new authority is published first, its certificate is stored when API servers have
had time to see it, and only then are bundles set to exactly what the Secret says.

The Secret is the command's own, not a Helm release's, so an upgrade leaves it alone. It is owned by
the ServiceAccount that made it and is therefore garbage-collected with it.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import random
import secrets
from argparse import _SubParsersAction
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import anyio

from preflight_kube import logs
from preflight_kube.admission.certificates import (
    Material,
    Renew,
    issue,
    plan,
    service_names,
    union,
)
from preflight_kube.api.jsonpatch import add, pointer, test
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.cli import commands
from preflight_kube.client.client import Client
from preflight_kube.errors import Conflict, KubeError, NotFound, PreconditionFailed
from preflight_kube.logs import get_logger

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""The label by which the command knows its Secret: one without it is somebody else's, and left
alone.
"""
ATTEMPTS: Final = 10
"""How often a write that lost against another writer is tried again."""
_LOOK_AGAIN: Final = 0.5
"""Seconds between two looks for a configuration that is not there yet."""

Object = dict[str, Any]
T = TypeVar("T")

log = get_logger(__name__)


@dataclass(frozen=True)
class Configuration:
    """A webhook configuration whose entries get the CA bundle."""

    kind: str
    name: str

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/apis/admissionregistration.k8s.io/v1/{self.kind.lower()}s/{self.name}"


@dataclass(frozen=True, kw_only=True)
class CertificateTarget:
    """Whose certificate is kept, and where it is published.

    ``manager``: the value of the label ``managed_by``, and in the authority's name. ``keys``:
    further entries of the Secret, 32 random bytes in hexadecimal, made once and never renewed.
    """

    namespace: str
    service: str
    secret: str
    configurations: tuple[Configuration, ...]
    manager: str
    managed_by: str = MANAGED_BY
    lifetime: timedelta = timedelta(days=90)
    keys: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The DNS names that the certificate must be good for."""
        return service_names(self.service, self.namespace)

    @property
    def secrets_path(self) -> str:
        """The collection that the Secret is in."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"


def add_command(
    subparsers: _SubParsersAction[argparse.ArgumentParser],
    *,
    component: str,
    service: str,
    secret: str = "",
    mutating: Sequence[str] = (),
    validating: Sequence[str] = (),
    managed_by: str = MANAGED_BY,
    keys: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """``certs``: the command, with names that default to those of the component's chart
    (``secret``: the service's name and ``-tls``). ``keys``: of :class:`CertificateTarget`.

    Gives its parser.
    """

    kinds = {"mutating": mutating, "validating": validating}

    def run(args: argparse.Namespace) -> int:
        logs.set_up(component, "info")
        named = tuple(
            Configuration(f"{kind.title()}WebhookConfiguration", name)
            for kind, default in kinds.items()
            for name in getattr(args, kind) or default
        )
        target = CertificateTarget(
            namespace=args.namespace,
            service=args.service,
            secret=args.secret,
            configurations=named,
            manager=f"{component}-certs",
            managed_by=managed_by,
            lifetime=timedelta(days=args.lifetime_days),
            keys=tuple(keys),
        )
        connected = connection()

        async def kept() -> None:
            owner = _service_account(connected, target.namespace)
            async with Client(connected, agent=component) as client:
                stored = await keep(client, target, owner=owner, settle_seconds=args.settle_seconds)
                await publish(client, target, stored, wait_seconds=args.wait_seconds)

        anyio.run(kept)
        return commands.DONE

    subparser = commands.command(
        subparsers, "certs", run, help="keep the serving certificate and the CA bundles fresh"
    )
    subparser.add_argument(
        "--namespace", required=True, help="namespace of the Service and the Secret"
    )
    subparser.add_argument("--service", default=service, help="the Service (%(default)s)")
    subparser.add_argument(
        "--secret", default=secret or f"{service}-tls", help="Secret to keep (%(default)s)"
    )
    for kind, names in kinds.items():
        subparser.add_argument(
            f"--{kind}",
            action="append",
            metavar="NAME",
            help=f"{kind.title()}WebhookConfiguration whose entries get the CA bundle; may be repeated ({', '.join(names) or 'none'})",
        )
    days = commands.number(1, 3650, "number of days")
    subparser.add_argument(
        "--lifetime-days", type=days, default=90, help="life of a certificate (%(default)s days)"
    )
    subparser.add_argument(
        "--wait-seconds",
        type=commands.seconds,
        default=0.0,
        help="how long to wait for the configurations to appear (%(default)s s)",
    )
    subparser.add_argument(
        "--settle-seconds",
        type=commands.seconds,
        default=5.0,
        help="how long API servers get to see a new authority before its certificate is stored (%(default)s s)",
    )
    return subparser


async def keep(
    client: Client,
    target: CertificateTarget,
    *,
    owner: Object | None = None,
    now: datetime | None = None,
    settle_seconds: float = 0,
) -> Material:
    """Make sure that the Secret holds good material, and return it.

    ``owner``: the ownerReference that the Secret must carry, if any. ``settle_seconds``: between
    the new authority in the bundles and its certificate in the Secret. Raises KubeError, also where
    the Secret is not the command's own.
    """

    path = f"{target.secrets_path}/{target.secret}"
    about = {"namespace": target.namespace, "secret": target.secret}

    async def attempt() -> Material:
        moment = now or datetime.now(UTC)
        secret: Object | None = await client.get_or_none(path, dict)
        labels = secret["metadata"].get("labels", {}) if secret is not None else {}
        if secret is not None and labels.get(target.managed_by) != target.manager:
            raise KubeError(
                f"Secret {target.namespace}/{target.secret} exists but is not labelled {target.managed_by}={target.manager}; "
                "delete it, or name another Secret by --secret."
            )
        stored = _material(secret)
        renewal = plan(stored, target.names, moment)
        if secret is not None and stored is not None and not isinstance(renewal, Renew):
            # Left over from a release that is gone: the garbage collector would take it away from
            # under us. Or from one that knew no such keys.
            owners = secret["metadata"].get("ownerReferences", [])
            if (owner and owner not in owners) or set(target.keys) - secret["data"].keys():
                await _write(client, target, secret, stored, owner)
                log.info("certificate has a new owner or further keys", **about)
            log.info("certificate is kept", renew_at=renewal.isoformat(), **about)
            return stored
        assert isinstance(renewal, Renew)  # what is kept is stored
        by, trusted = target.manager.removesuffix("-certs"), renewal.trusted
        fresh = issue(target.names, target.lifetime, moment, trusted, by=by)
        published = [
            await _set_bundles(
                client, configuration, lambda present: union(present, fresh.authorities)
            )
            for configuration in target.configurations
        ]
        # Else there is nobody to inform, or nothing is served yet.
        if any(published) and stored is not None:
            await anyio.sleep(settle_seconds)
        await _write(client, target, secret, fresh, owner)
        log.info("certificate made", why=renewal.reason, **about)
        return fresh

    return await _retried(attempt)


async def publish(
    client: Client, target: CertificateTarget, stored: Material, *, wait_seconds: float = 0
) -> None:
    """Set the CA bundle of every entry of the configurations to what ``stored`` trusts.

    Waits up to ``wait_seconds`` for them to exist: an installer may create them after this command
    starts. Raises KubeError.
    """
    end = anyio.current_time() + wait_seconds
    for configuration in target.configurations:
        while not await _retried(
            lambda configuration=configuration: _set_bundles(
                client, configuration, lambda _: stored.authorities
            )  # type: ignore[misc]
        ):
            if anyio.current_time() >= end:
                option = configuration.kind.removesuffix("WebhookConfiguration").lower()
                raise NotFound(
                    f"{configuration.kind} {configuration.name} does not exist; "
                    f"install the chart, or name the right one by --{option}.",
                    404,
                )
            await anyio.sleep(_LOOK_AGAIN)


async def _set_bundles(
    client: Client, configuration: Configuration, wanted: Callable[[bytes], bytes]
) -> bool:
    """Give every entry the bundle that ``wanted`` makes of its present one. False: there is no such
    configuration.
    """
    current: Object | None = await client.get_or_none(configuration.path, dict)
    if current is None:
        return False
    version = current["metadata"]["resourceVersion"]
    names, patch = [], [test(pointer("metadata", "resourceVersion"), version)]
    for number, webhook in enumerate(current.get("webhooks") or ()):
        present = _decoded(webhook["clientConfig"].get("caBundle") or "")
        if (bundle := wanted(present)) != present:
            names.append(webhook["name"])
            patch.append(
                add(pointer("webhooks", number, "clientConfig", "caBundle"), _encoded(bundle))
            )
    if names:
        # A plain patch, not server-side apply: an applier would go on owning an entry that an
        # upgrade removes.
        await client.json_patch(configuration.path, patch)
        log.info("CA bundle set", kind=configuration.kind, name=configuration.name, webhooks=names)
    return True


async def _write(
    client: Client,
    target: CertificateTarget,
    secret: Object | None,
    material: Material,
    owner: Object | None,
) -> None:
    data = {
        "tls.crt": material.certificate,
        "tls.key": material.key,
        "ca.crt": material.authorities,
    }
    known = (secret or {}).get("data") or {}
    keys = {key: known.get(key) or _encoded(secrets.token_hex(32).encode()) for key in target.keys}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": secret["metadata"]
        if secret
        else {"name": target.secret, "labels": {target.managed_by: target.manager}},
        "data": {**keys, **{name: _encoded(content) for name, content in data.items()}},
    }
    if owner is not None:
        body["metadata"]["ownerReferences"] = [owner]
    if secret is None:
        await client.create(target.secrets_path, body)
        return
    try:
        await client.replace(f"{target.secrets_path}/{target.secret}", body)
    except NotFound as error:
        raise Conflict(str(error), error.status) from error  # deleted meanwhile: read again


async def _retried(attempt: Callable[[], Awaitable[T]]) -> T:
    for number in range(1, ATTEMPTS + 1):
        try:
            return await attempt()
        except (Conflict, PreconditionFailed):
            if number == ATTEMPTS:
                raise
            await anyio.sleep(random.uniform(0, 0.1 * number))  # noqa: S311 - spread, not a secret
    raise AssertionError("unreachable")


def _material(secret: Object | None) -> Material | None:
    data = (secret or {}).get("data") or {}
    if not {"tls.crt", "tls.key", "ca.crt"} <= data.keys():
        return None
    return Material(_decoded(data["tls.crt"]), _decoded(data["tls.key"]), _decoded(data["ca.crt"]))


def _service_account(connected: Connection, namespace: str) -> Object | None:
    """An ownerReference to the ServiceAccount that this runs as; None outside a pod or in another
    namespace.

    Read from the claims of our own token, so that no permission to read ServiceAccounts is needed.
    """
    try:
        payload = (connected.token or "").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        pod = claims["kubernetes.io"]
        account = {key: pod["serviceaccount"][key] for key in ("name", "uid")}
        owner = {"apiVersion": "v1", "kind": "ServiceAccount", **account}
        return owner if pod["namespace"] == namespace else None
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except binascii.Error:
        return b""
