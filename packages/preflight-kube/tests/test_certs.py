"""The command that keeps certificates, the same against the double and a real kube-apiserver."""

from __future__ import annotations

import argparse
import base64
import json
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from cryptography import x509
from preflight_kube import logs
from preflight_kube.admission import certs
from preflight_kube.admission.certificates import Material
from preflight_kube.admission.certs import CertificateTarget, Configuration, keep, publish
from preflight_kube.auth.connection import Connection
from preflight_kube.cli import commands
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_testing.apidouble import RESOURCES, Resource
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=90)
Object = dict[str, Any]


def configuration(one: Configuration, *entries: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": one.kind,
        "metadata": {"name": one.name},
        "webhooks": [
            {
                "name": name,
                "clientConfig": {"service": {"name": "hook", "namespace": "nobody"}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            for name in entries
        ],
    }


class World:
    """A namespace, two webhook configurations of the test's own, and what is in the cluster of
    them.
    """

    def __init__(self, api: ApiFixture, client: Client) -> None:
        self.client = client
        self.target = CertificateTarget(
            namespace=api.namespace,
            service="hook",
            secret="hook-tls",
            configurations=(
                Configuration("MutatingWebhookConfiguration", f"m-{api.namespace}"),
                Configuration("ValidatingWebhookConfiguration", f"v-{api.namespace}"),
            ),
            manager="hook-certs",
            lifetime=LIFE,
        )

    @property
    def secret_path(self) -> str:
        return f"{self.target.secrets_path}/hook-tls"

    async def install(self, *entries: str) -> None:
        for one in self.target.configurations:
            await self.client.create(one.path.rpartition("/")[0], configuration(one, *entries))

    async def keep(self, now: datetime = NOW, **more: Any) -> Material:
        return await keep(self.client, self.target, now=now, **more)

    async def published(self, *entries: str) -> Material:
        """What is stored and trusted after the first run, with these entries in both."""
        await self.install(*entries)
        stored = await self.keep()
        await publish(self.client, self.target, stored)
        return stored

    async def bundles(self) -> list[bytes]:
        """The bundle of each entry of both."""
        found = []
        for one in self.target.configurations:
            there: Object = await self.client.get(one.path, dict)
            found += [
                base64.b64decode(hook["clientConfig"].get("caBundle", ""))
                for hook in there["webhooks"]
            ]
        return found

    async def secret(self) -> Object:
        found: Object = await self.client.get(self.secret_path, dict)
        return found


SERVED = [
    *RESOURCES,
    *(
        Resource("admissionregistration.k8s.io/v1", f"{kind.lower()}s", kind, namespaced=False)
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    ),
]


@pytest.fixture
async def world(api: ApiFixture, client: Client) -> AsyncIterator[World]:
    made = World(api, client)
    yield made
    for one in made.target.configurations:
        try:
            await client.delete(one.path)
        except NotFound:
            continue


async def test_the_first_run_makes_a_secret_and_both_kinds_of_configuration_trust_it(
    world: World,
) -> None:
    stored = await world.published("a.example.com", "b.example.com")
    secret = await world.secret()
    assert secret["type"] == "kubernetes.io/tls"
    assert secret["metadata"]["labels"] == {certs.MANAGED_BY: "hook-certs"}
    assert base64.b64decode(secret["data"]["ca.crt"]) == stored.authorities
    assert await world.bundles() == [stored.authorities] * 4
    leaf = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"hook.{world.target.namespace}.svc" in names.get_values_for_type(x509.DNSName)
    assert leaf.issuer.rfc4514_string().startswith("CN=hook authority")


async def test_a_second_run_writes_nothing(world: World) -> None:
    await world.published("a.example.com")
    before = world.client.requests.count.copy()
    await publish(
        world.client,
        world.target,
        await world.keep(NOW + timedelta(days=30)),
    )
    assert set(world.client.requests.count - before) == {"get"}


async def test_a_key_of_the_applications_is_made_once_and_outlives_every_certificate(
    world: World,
) -> None:
    await world.install("a.example.com")
    await world.keep()
    target = replace(world.target, keys=("mark.key",))
    first = await keep(world.client, target, now=NOW)  # a version that knows of keys takes over
    key = (await world.secret())["data"]["mark.key"]
    assert re.fullmatch(rb"[0-9a-f]{64}", base64.b64decode(key))
    before = world.client.requests.count.copy()
    assert await keep(world.client, target, now=NOW) == first
    assert set(world.client.requests.count - before) == {"get"}
    assert await keep(world.client, target, now=NOW + 2 * LIFE) != first
    assert (await world.secret())["data"]["mark.key"] == key


async def test_a_renewal_publishes_the_new_authority_before_it_stores_its_certificate(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await world.published("a.example.com")
    seen: list[tuple[list[bytes], bytes]] = []

    async def sleep(seconds: float) -> None:
        stored = (await world.secret())["data"]["tls.crt"]
        seen.append((await world.bundles(), base64.b64decode(stored)))
        assert seconds == 5

    monkeypatch.setattr(anyio, "sleep", sleep)
    new = await world.keep(NOW + timedelta(days=61), settle_seconds=5)
    [(bundles, served)] = seen
    assert served == old.certificate
    assert new.certificate != old.certificate
    for bundle in bundles:
        assert {one.subject for one in x509.load_pem_x509_certificates(bundle)} == {
            one.subject for one in x509.load_pem_x509_certificates(new.authorities)
        }
    assert len(x509.load_pem_x509_certificates(new.authorities)) == 2, (
        "what old pods still serve stays trusted"
    )
    await publish(world.client, world.target, new)
    assert await world.bundles() == [new.authorities] * 2


async def test_a_secret_of_somebody_else_is_left_alone(world: World) -> None:
    await world.client.create(
        world.target.secrets_path, {"metadata": {"name": "hook-tls"}, "data": {"a": "Yg=="}}
    )
    with pytest.raises(
        KubeError, match=r"exists but is not labelled app\.kubernetes\.io/managed-by=hook-certs"
    ):
        await world.keep()
    assert (await world.secret())["data"] == {"a": "Yg=="}


async def test_a_configuration_that_is_missing_is_named_with_its_option(world: World) -> None:
    mutating, validating = world.target.configurations
    stored = await world.keep()
    with pytest.raises(
        NotFound,
        match=f"MutatingWebhookConfiguration {mutating.name} does not exist.* by --mutating",
    ):
        await publish(world.client, world.target, stored)
    await world.client.create(
        mutating.path.rpartition("/")[0], configuration(mutating, "a.example.com")
    )
    with pytest.raises(
        NotFound, match=f"ValidatingWebhookConfiguration {validating.name} .* by --validating"
    ):
        await publish(world.client, world.target, stored)


async def test_a_configuration_that_comes_later_is_waited_for(world: World) -> None:
    stored = await world.keep()
    async with anyio.create_task_group() as group:

        async def later() -> None:
            await anyio.sleep(0.05)
            await world.install("a.example.com")

        group.start_soon(later)
        await publish(world.client, world.target, stored, wait_seconds=60)
    assert await world.bundles() == [stored.authorities] * 2


async def test_a_write_that_another_was_quicker_with_is_tried_again(world: World) -> None:
    await world.install("a.example.com")
    stored = await world.keep()
    get, touched = world.client.get_or_none, []

    async def get_or_none(path: str, type_: type[Any], **more: Any) -> Any:
        found = await get(path, type_, **more)
        if path not in touched:
            touched.append(path)
            await world.client.merge_patch(path, {"metadata": {"labels": {"touched": "yes"}}})
        return found

    world.client.get_or_none = get_or_none  # type: ignore[method-assign]
    await publish(world.client, world.target, stored)
    assert len(touched) == 2
    assert await world.bundles() == [stored.authorities] * 2


async def test_an_entry_that_comes_later_gets_the_bundle_and_the_certificate_stays(
    world: World,
) -> None:
    stored = await world.published("a.example.com")
    for one in world.target.configurations:
        there: Object = await world.client.get(one.path, dict)
        there["webhooks"] += configuration(one, "b.example.com")["webhooks"]
        await world.client.replace(one.path, there)
    assert await world.keep() == stored
    await publish(world.client, world.target, stored)
    assert await world.bundles() == [stored.authorities] * 4


async def test_runs_at_the_same_time_agree_on_one_certificate(world: World) -> None:
    await world.install("a.example.com")
    made: list[Material] = []

    async def run() -> None:
        stored = await world.keep()
        await publish(world.client, world.target, stored)
        made.append(stored)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(run)
    assert len(set(made)) == 1
    assert await world.bundles() == [made[0].authorities] * 2


async def test_a_run_that_dies_before_it_stores_leaves_what_is_served_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: object) -> None:
        raise KubeError("the process ended")

    first = await world.published("a.example.com")
    with monkeypatch.context() as patched:
        patched.setattr(certs, "_write", dies)
        with pytest.raises(KubeError):
            await world.keep(NOW + timedelta(days=61))
    assert all(first.authorities in bundle for bundle in await world.bundles())
    assert await world.keep() == first
    await publish(world.client, world.target, first)
    assert await world.bundles() == [first.authorities] * 2


def test_the_owner_is_read_from_the_pod_s_own_token_and_only_for_its_namespace() -> None:
    claims = {
        "kubernetes.io": {"namespace": "ours", "serviceaccount": {"name": "certs", "uid": "1-2"}}
    }
    token = "h." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".s"
    inside = Connection("https://here", ssl.create_default_context(), token)
    owner = certs._service_account(inside, "ours")
    assert owner == {"apiVersion": "v1", "kind": "ServiceAccount", "name": "certs", "uid": "1-2"}
    assert certs._service_account(inside, "elsewhere") is None
    assert (
        certs._service_account(Connection("https://here", inside.verify, "opaque"), "ours") is None
    )


async def test_the_owner_is_set_and_set_anew_when_it_is_another(world: World) -> None:
    owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": "one", "uid": "1"}
    stored = await world.keep(NOW, owner=owner)
    assert [one["uid"] for one in (await world.secret())["metadata"]["ownerReferences"]] == ["1"]
    again = await world.keep(NOW, owner={**owner, "uid": "2"})
    assert again == stored
    assert [one["uid"] for one in (await world.secret())["metadata"]["ownerReferences"]] == ["2"]


# --- the command


def make() -> argparse.ArgumentParser:
    made, subparsers = commands.parser("tests", "About.", distribution="preflight-kube")
    certs.add_command(
        subparsers, component="tests", service="hook", mutating=["m"], validating=["v"]
    )
    return made


def test_the_command_does_it_for_the_named_configurations(
    api: ApiFixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "set_up", lambda *_: None)  # pytest's own logging stays
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    name = f"m-{api.namespace}"
    arguments = ["certs", "--namespace", api.namespace, "--mutating", name, "--settle-seconds=0"]
    with pytest.raises(SystemExit) as raised:
        commands.main(make, arguments)
    assert raised.value.code == commands.FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"MutatingWebhookConfiguration m-{api.namespace} does not exist;")
    assert said.count("\n") == 1


@pytest.mark.parametrize("days", ["0", "3651", "x"])
def test_a_life_that_is_not_one_is_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        commands.main(make, ["certs", "--namespace", "ns", "--lifetime-days", days])
    assert raised.value.code == commands.BAD_INPUT
    assert "is not a number of days; give a number from 1 to 3650" in capsys.readouterr().err
