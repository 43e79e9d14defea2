"""What namespaces set for themselves: what of it counts, and that no admission asks for it. Against
the API double and a real API server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from handled import handled
from pods import GPU_POD, review
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_proto.policy import GROUP, KIND, VERSION, PreflightConfigSpec, decode_spec, path
from preflight_testing.apidouble import ApiAnswer, ApiDouble, write_kubeconfig
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import GANG as GANG_CHART
from preflight_testing.plugin import ApiFixture, api, real_api_server
from preflight_webhook.config.config import effective, parse
from preflight_webhook.metrics import Metrics
from preflight_webhook.webhook.handler import Admission, ServingState
from preflight_webhook.webhook.namespace_overrides import NamespaceOverride, NamespaceOverrides
from prometheus_client import generate_latest

__all__ = ["api", "real_api_server"]

CONFIG = parse(
    "checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: n}]\nskipNcclWithoutNetwork: false"
)
OBSERVE = {"enforcement": "observe"}
BY_LABEL = {"gangDiscovery": {"method": "labels", "labels": {"gangIdLabel": "example.com/job"}}}


# --- what is set, over the cluster's configuration


def spec(made: dict[str, Any]) -> PreflightConfigSpec:
    return decode_spec(json.dumps(made).encode())


def test_what_is_set_replaces_what_the_cluster_says_and_nothing_else() -> None:
    config = effective(CONFIG, spec(BY_LABEL))
    discovery, before = config.gang_discovery, CONFIG.gang_discovery
    assert (discovery.method, discovery.labels.gang_id_label) == ("labels", "example.com/job")
    assert discovery.labels.gang_size_label == before.labels.gang_size_label
    assert discovery.owner_schedulers == before.owner_schedulers
    assert config.checks == CONFIG.checks
    none = effective(CONFIG, spec({"gangDiscovery": {"ownerSchedulers": []}}))
    assert none.gang_discovery.owner_schedulers == ()


@pytest.mark.parametrize("word", ["observe", "enforce"])
def test_enforcement_is_that_of_all_checks(word: str) -> None:
    assert {
        check.enforcement for check in effective(CONFIG, spec({"enforcement": word})).checks
    } == {word}


def test_the_same_two_make_the_same_configuration() -> None:
    assert effective(CONFIG, spec(OBSERVE)) is effective(CONFIG, spec(OBSERVE))


# --- followed


class Cluster:
    """PreflightConfigs, with the status that a test gives them."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._target, self.namespace = connection({"KUBECONFIG": str(kubeconfig)}), namespace

    def call(self, method: str, where: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        head = {"Authorization": f"Bearer {self._target.token}"} if self._target.token else {}
        with httpx.Client(
            base_url=self._target.server, verify=self._target.verify, headers=head, trust_env=False
        ) as http:
            answer = http.request(method, where, json=body)
        assert answer.is_success, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def create(self, name: str, wanted: dict[str, Any]) -> None:
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name},
            "spec": wanted,
        }
        self.call("POST", path(self.namespace), body)

    def judge(self, name: str, status: str = "True") -> None:
        """As the gang controller does it."""
        condition: dict[str, Any] = {
            "type": "Accepted",
            "status": status,
            "reason": "InForce" if status == "True" else "Invalid",
            "message": "why",
            "lastTransitionTime": "2026-11-21T08:00:00Z",
        }
        item = self.call("GET", path(self.namespace, name))
        condition["observedGeneration"] = item["metadata"]["generation"]
        self.call(
            "PUT",
            path(self.namespace, name) + "/status",
            {**item, "status": {"conditions": [condition]}},
        )

    def change(self, name: str, wanted: dict[str, Any]) -> None:
        item = self.call("GET", path(self.namespace, name))
        self.call("PUT", path(self.namespace, name), {**item, "spec": wanted})

    def accepted(self, name: str, wanted: dict[str, Any]) -> None:
        self.create(name, wanted)
        self.judge(name)

    def delete(self, name: str) -> None:
        self.call("DELETE", path(self.namespace, name))


@pytest.fixture
def cluster(api: ApiFixture, request: pytest.FixtureRequest) -> Cluster:
    if api.kind == "real":
        server: ApiServer = request.getfixturevalue("real_api_server")
        server.define(
            next(yaml.safe_load_all((GANG_CHART / "generated" / "definitions.yaml").read_text()))
        )
    return Cluster(api.kubeconfig, api.namespace)


@asynccontextmanager
async def following(kubeconfig: Path, **options: Any) -> AsyncIterator[NamespaceOverrides]:
    async with followed_by(connection({"KUBECONFIG": str(kubeconfig)}), **options) as policies:
        yield policies


@asynccontextmanager
async def followed_by(
    target: Connection, metrics: Metrics | None = None, **options: Any
) -> AsyncIterator[NamespaceOverrides]:
    async with Client(target, agent="preflight-webhook", attempts=2) as client:
        policies = NamespaceOverrides(client, metrics or Metrics(), **options)
        task = asyncio.create_task(policies.run())
        try:
            yield policies
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def behind(policies: NamespaceOverrides) -> float:
    return policies._mirrors.behind().get(path(), 0.0)


async def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.01)


def followed(api: ApiFixture, story: Callable[[NamespaceOverrides], Any]) -> None:
    async def run() -> None:
        async with following(api.kubeconfig) as policies:
            await until(policies._reflector.synced.is_set, "they are read")
            await story(policies)

    asyncio.run(run())


def test_what_is_accepted_before_and_after_the_start_is_in_force(
    api: ApiFixture, cluster: Cluster
) -> None:
    cluster.accepted("one", OBSERVE)

    async def story(policies: NamespaceOverrides) -> None:
        assert policies.of(cluster.namespace) == NamespaceOverride("one", spec(OBSERVE))
        assert policies.of("elsewhere") is None
        await asyncio.to_thread(cluster.delete, "one")
        await until(lambda: policies.of(cluster.namespace) is None, "it is gone")
        await asyncio.to_thread(cluster.accepted, "two", BY_LABEL)
        await until(
            lambda: policies.of(cluster.namespace) == NamespaceOverride("two", spec(BY_LABEL)),
            "the other one",
        )

    followed(api, story)


def test_what_is_not_accepted_or_not_as_it_is_now_does_not_count(
    api: ApiFixture, cluster: Cluster
) -> None:
    cluster.create("new", OBSERVE)
    cluster.create("refused", OBSERVE)
    cluster.judge("refused", "False")

    async def story(policies: NamespaceOverrides) -> None:
        assert policies.of(cluster.namespace) is None
        await asyncio.to_thread(cluster.judge, "new")
        await until(lambda: policies.of(cluster.namespace), "accepted")
        await asyncio.to_thread(cluster.change, "new", BY_LABEL)
        await until(lambda: not policies.of(cluster.namespace), "not as it is now")
        await asyncio.to_thread(cluster.judge, "new")
        await until(
            lambda: policies.of(cluster.namespace) == NamespaceOverride("new", spec(BY_LABEL)),
            "accepted again",
        )

    followed(api, story)


def test_where_two_say_that_they_are_in_force_none_is(api: ApiFixture, cluster: Cluster) -> None:
    cluster.accepted("one", OBSERVE)
    cluster.accepted("two", BY_LABEL)

    async def story(policies: NamespaceOverrides) -> None:
        assert policies.of(cluster.namespace) is None
        await asyncio.to_thread(cluster.judge, "one", "False")
        await until(
            lambda: policies.of(cluster.namespace) == NamespaceOverride("two", spec(BY_LABEL)),
            "one is left",
        )

    followed(api, story)


# --- trouble, which only the double can make at will


@pytest.fixture
def double(tmp_path: Path) -> Iterator[ApiDouble]:
    with ApiDouble() as made:
        write_kubeconfig(tmp_path / "kubeconfig", made.url)
        yield made


def test_a_cluster_without_the_kind_has_none_and_is_asked_again(
    double: ApiDouble, tmp_path: Path
) -> None:
    double.within(lambda: double.api.absent.add(f"{GROUP}/{VERSION}"))

    async def story() -> None:
        async with following(tmp_path / "kubeconfig", absent_retry=0.05) as policies:
            await until(lambda: not policies.unready(), "it is known that there are none")
            assert behind(policies) == 0
            double.within(double.api.absent.clear)
            cluster = Cluster(tmp_path / "kubeconfig", "default")
            await asyncio.to_thread(cluster.accepted, "one", OBSERVE)
            await until(lambda: policies.of("default"), "it is found")
            assert behind(policies) == 0

    asyncio.run(story())


def test_what_was_seen_last_holds_while_the_api_server_does_not_answer(
    double: ApiDouble, tmp_path: Path
) -> None:
    Cluster(tmp_path / "kubeconfig", "default").accepted("one", OBSERVE)
    sad = {"kind": "Status", "message": "no", "code": 500}

    async def story() -> None:
        metrics = Metrics()
        async with following(tmp_path / "kubeconfig", metrics=metrics) as policies:
            await until(lambda: policies.of("default"), "it is seen")

            def break_off() -> None:
                double.fault = lambda request: ApiAnswer(500, sad)
                double.cut()

            double.within(break_off)
            await until(lambda: behind(policies), "trouble")
            assert policies.of("default")
            assert policies.unready() == ""
            shown = generate_latest(metrics.registry)
            assert b"preflight_webhook_preflight_configs_behind 1.0" in shown

    asyncio.run(story())


def test_who_may_not_read_them_is_not_ready_and_says_why(double: ApiDouble, tmp_path: Path) -> None:
    sad = {"kind": "Status", "message": "no", "code": 403}
    double.fault = lambda request: ApiAnswer(403, sad)
    wanted = True

    async def story() -> None:
        nonlocal wanted
        async with following(tmp_path / "kubeconfig", wanted=lambda: wanted) as policies:
            await until(lambda: "403" in policies.unready(), "refused")
            wanted = False
            assert policies.unready() == ""
            wanted = True
            assert policies.unready() == "", "who was ready stays so"

    asyncio.run(story())


def test_they_are_not_asked_for_while_the_configuration_does_not_want_them(
    double: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preflight_webhook.webhook.namespace_overrides.POLL_EVERY", 0.01)
    wanted = False

    async def story() -> None:
        nonlocal wanted
        looked = 0

        def look() -> bool:
            nonlocal looked
            looked += 1
            return wanted

        async with following(tmp_path / "kubeconfig", wanted=look) as policies:
            await until(lambda: looked > 3, "it is looked at")
            assert double.requests == []
            wanted = True
            await until(
                lambda: any("watch" in request.params for request in double.requests),
                "they are followed",
            )
            wanted = False
            await until(lambda: not policies._mirrors.behind(), "the watch is left")

    asyncio.run(story())


def test_one_that_cannot_be_read_is_counted_and_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted = {"type": "Accepted", "status": "True", "observedGeneration": 1}
    good = {
        "metadata": {"name": "own", "namespace": "ml", "uid": "1", "generation": 1},
        "spec": OBSERVE,
        "status": {"conditions": [accepted]},
    }
    listed = {"items": [{"metadata": {"name": 5}}, good], "metadata": {"resourceVersion": "7"}}
    handled(
        monkeypatch,
        lambda _: httpx.Response(200, stream=httpx.ByteStream(json.dumps(listed).encode())),
    )

    async def story() -> None:
        metrics = Metrics()
        target = Connection("http://api", ssl.create_default_context())
        async with followed_by(target, metrics) as policies:
            await until(lambda: policies.of("ml"), "it is read")
            shown = generate_latest(metrics.registry)
            assert b'preflight_webhook_unreadable_total{kind="PreflightConfig"} 1.0' in shown

    asyncio.run(story())


def test_one_that_is_not_understood_is_told_and_does_not_hide_the_others(
    double: ApiDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Cluster(tmp_path / "kubeconfig", "default").accepted(
        "later", {"gangDiscovery": {"method": "quantum"}}
    )
    Cluster(tmp_path / "kubeconfig", "kube-system").accepted("one", OBSERVE)

    async def story() -> None:
        async with following(tmp_path / "kubeconfig") as policies:
            await until(lambda: policies.of("kube-system"), "the other one is in force")
            assert policies.of("default") is None

    asyncio.run(story())
    assert any(
        record.message == "PreflightConfig is accepted but not understood"
        for record in caplog.records
    )


# --- admission


def member(number: int) -> dict[str, Any]:
    labels = {"example.com/job": "train"}
    return {**GPU_POD, "metadata": {"name": f"p-{number}", "labels": labels}}


async def admitted(state: ServingState, namespace: str, number: int = 0) -> str:
    """The patch of one pod."""
    transport = httpx.ASGITransport(app=Admission(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://webhook") as http:
        answer = await http.post(
            "/mutate-pod",
            content=json.dumps(review(member(number), namespace=namespace)),
            headers={"content-type": "application/json"},
        )
    patch = answer.json()["response"]["patch"]
    return base64.b64decode(patch).decode()


def test_a_gang_of_128_that_only_its_namespace_knows_takes_no_request(
    double: ApiDouble, tmp_path: Path
) -> None:
    Cluster(tmp_path / "kubeconfig", "default").accepted("by-label", BY_LABEL | OBSERVE)

    async def story() -> None:
        async with following(tmp_path / "kubeconfig") as policies:
            await until(lambda: policies.of("default"), "it is seen")
            await until(
                lambda: any("watch" in request.params for request in double.requests),
                "it is watched",
            )
            state = ServingState(CONFIG, policies=policies)
            asked = len(double.requests)
            patches = await asyncio.gather(
                *(admitted(state, "default", number) for number in range(128))
            )
            assert all('\\"id\\":\\"train\\"' in patch for patch in patches)
            assert all('"observe"' in patch for patch in patches)
            assert len(double.requests) == asked
            elsewhere = await admitted(state, "kube-system")
            assert "train" not in elsewhere
            assert '"observe"' not in elsewhere
            off = ServingState(
                parse("checks: [{name: dcgm-diag, image: d}]\npreflightConfigs: {enabled: false}"),
                policies=policies,
            )
            assert '"observe"' not in await admitted(off, "default")

    asyncio.run(story())
