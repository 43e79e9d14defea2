from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from claimed import DOMAIN, NODE, claim, config, document, parameters, ref, result
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.api.types import ResourceClaim
from preflight_computedomain.core import claims
from preflight_computedomain.core.claims import (
    ChannelRequest,
    KubeletClaim,
    Refusal,
    read,
    unusable,
)

ONE = ref()


def refused(made: ResourceClaim | None) -> Refusal:
    said = read(ONE, made, NODE)
    assert isinstance(said, Refusal)
    assert said.permanent
    assert "\n" not in said.told(ONE, NODE)
    assert said.told(ONE, NODE).startswith("compute-domain.nvidia.com: team-a/claim-1: ")
    return said


def accepted(made: ResourceClaim) -> ChannelRequest:
    said = read(ONE, made, NODE)
    assert isinstance(said, ChannelRequest), said
    return said


def test_a_workload_claim_is_a_request_for_its_domain() -> None:
    said = accepted(claim(ONE))
    assert (said.request, said.domain) == ("channel", DOMAIN)
    assert json.loads(said.status) == document(ONE)["status"]


def test_an_absent_or_empty_mode_is_single() -> None:
    for mode in (None, ""):
        assert (
            accepted(claim(ONE, configs=[config(parameters(allocationMode=mode))])).domain == DOMAIN
        )


@pytest.mark.parametrize("mode", ["All", "foo", "single", "ALL "])
def test_any_other_mode_is_refused_by_its_name(mode: str) -> None:
    said = refused(claim(ONE, configs=[config(parameters(allocationMode=mode))]))
    assert said.reason == "allocation-mode"
    assert (
        f'host-managed IMEX supports only allocationMode "Single" (channel 0); got "{mode}"'
        in said.sentence
    )


@pytest.mark.parametrize(
    ("given_", "word"),
    [
        (parameters(domainID=""), "domainID"),
        (parameters(domainID=None), "domainID"),
        (parameters(domainID=7), "domainID"),
        (parameters(allocationMode=["Single"]), "allocationMode"),
        (parameters(extra=1), "extra"),
        (parameters(AllocationMode="Single"), "AllocationMode"),
        (parameters(apiVersion="resource.nvidia.com/v1"), "apiVersion"),
        (parameters(kind="ComputeDomain"), "kind"),
        ([parameters()], "write an object"),
        ("text", "write an object"),
    ],
)
def test_a_configuration_that_is_not_exactly_one_is_refused_by_its_field(
    given_: Any, word: str
) -> None:
    said = refused(claim(ONE, configs=[config(given_)]))
    assert said.reason == "config"
    assert word in said.sentence


def test_no_configuration_and_two_are_refused() -> None:
    assert "no configurations" in refused(claim(ONE, configs=[])).sentence
    assert (
        "2 configurations"
        in refused(claim(ONE, configs=[config(), config(parameters(domainID="other"))])).sentence
    )


def test_a_field_that_stands_twice_is_refused() -> None:
    text = json.dumps(document(ONE)).replace('"domainID":', '"domainID": "other", "domainID":', 1)
    said = read(ONE, msgspec.json.decode(text.encode(), type=ResourceClaim), NODE)
    assert isinstance(said, Refusal)
    assert "is there twice" in said.sentence


def test_the_claims_configuration_wins_over_the_class() -> None:
    of_class = config(
        parameters(domainID="class", allocationMode="All"), source="FromClass", requests=()
    )
    assert accepted(claim(ONE, configs=[of_class, config()])).domain == DOMAIN
    assert accepted(claim(ONE, configs=[config(), of_class])).domain == DOMAIN
    assert refused(claim(ONE, configs=[of_class])).reason == "allocation-mode"


def test_a_configuration_applies_by_request_main_request_or_to_all() -> None:
    for names in ((), ("channel",), ("channel/a",), ("other", "channel")):
        said = accepted(claim(ONE, [result(request="channel/a")], [config(requests=names)]))
        assert said.request == "channel"
    assert refused(claim(ONE, configs=[config(requests=("other",))])).reason == "config"


@given(
    st.lists(
        st.builds(
            lambda given_, names, source: config(
                given_, requests=tuple(names), source=source, driver="gpu.nvidia.com"
            ),
            st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
            st.lists(st.sampled_from(["channel", "gpu"]), max_size=2),
            st.sampled_from(["FromClass", "FromClaim"]),
        ),
        max_size=4,
    ),
    st.integers(0, 4),
)
def test_configurations_of_other_drivers_change_nothing(
    others: list[dict[str, Any]], at: int
) -> None:
    mixed = [*others[:at], config(), *others[at:]]
    assert accepted(claim(ONE, configs=mixed)).domain == DOMAIN


def test_results_of_other_drivers_and_nodes_are_not_ours() -> None:
    others = [result("gpu-0", driver="gpu.nvidia.com", request="gpu"), result(pool="node-2")]
    assert accepted(claim(ONE, [*others, result()])).request == "channel"
    assert "channel-0 of node-2" in refused(claim(ONE, others)).sentence


def test_two_results_and_an_unknown_device_are_refused_by_name() -> None:
    two = refused(claim(ONE, [result(), result("channel-1")]))
    assert two.reason == "results"
    assert "channel-1" in two.sentence
    assert "channel-1" in refused(claim(ONE, [result("channel-1")])).sentence


def test_a_daemons_claim_is_refused_by_configuration_and_by_device() -> None:
    words = "ComputeDomain daemon claims are not supported under the HostManagedIMEX feature gate"
    daemon = config(
        {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomainDaemonConfig",
            "domainID": DOMAIN,
            "x": 1,
        }
    )
    for made, found in (
        (claim(ONE, configs=[daemon]), "request channel has kind ComputeDomainDaemonConfig"),
        (claim(ONE, [result("daemon-0")]), "request channel has device daemon-0"),
    ):
        said = refused(made)
        assert said.reason == "daemon"
        assert said.sentence.startswith(f"{words} ({found}); delete the pod")


def test_a_claim_that_is_gone_new_or_not_allocated_is_refused() -> None:
    assert refused(None).reason == "gone"
    assert refused(claim(ref(2, "claim-1"))).reason == "other-claim"
    assert refused(claim(ONE, allocation=None)).reason == "no-allocation"
    assert (
        refused(
            msgspec.json.decode(
                b'{"metadata":{"name":"claim-1","uid":"%s"}}' % ONE.uid.encode(), type=ResourceClaim
            )
        ).reason
        == "no-allocation"
    )


def test_parameters_of_ten_megabytes_are_refused_at_once() -> None:
    made = claim(ONE, configs=[config("x" * 10_000_000)])
    said = refused(made)
    assert "10000002 bytes" in said.sentence
    assert len(said.sentence) < 1000


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
HOSTILE = st.fixed_dictionaries(
    {},
    optional={
        "request": JSON,
        "driver": st.just("compute-domain.nvidia.com") | JSON,
        "pool": st.just(NODE) | JSON,
        "device": st.sampled_from(["channel-0", "daemon-0", "channel-1"]) | JSON,
    },
)


@given(
    st.lists(HOSTILE | JSON, max_size=3),
    st.lists(
        JSON
        | st.builds(config, JSON | st.dictionaries(st.sampled_from(sorted(parameters())), JSON)),
        max_size=3,
    ),
)
def test_no_claim_raises_and_what_is_accepted_has_one_device_here(
    results: list[Any], configs: list[Any]
) -> None:
    said = read(ONE, claim(ONE, results, configs), NODE)
    if isinstance(said, ChannelRequest):
        assert said.domain
    else:
        assert said.permanent
        assert said.sentence.isprintable()


def test_deep_parameters_are_refused() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    text = json.dumps(document(ONE, configs=[config("@")])).encode().replace(b'"@"', deep)
    try:
        made = msgspec.json.decode(text, type=ResourceClaim)
    except (msgspec.MsgspecError, RecursionError):
        return  # the client refuses it
    assert isinstance(read(ONE, made, NODE), Refusal)


@pytest.mark.parametrize(
    "bad",
    [
        KubeletClaim("team-a", "claim", "../../etc/passwd"),
        KubeletClaim("team-a", "claim", ""),
        KubeletClaim("team-a", "claim", "a/b"),
        KubeletClaim("team-a", "claim", "x" * 200),
        KubeletClaim("team-a", "..", "u"),
        KubeletClaim("team-a", "a/../b", "u"),
        KubeletClaim("team-a", "a" * 254, "u"),
        KubeletClaim("", "claim", "u"),
        KubeletClaim("team.a", "claim", "u"),
        KubeletClaim("team-a", "claim\n", "u"),
    ],
)
def test_names_that_can_be_no_claims_are_refused(bad: KubeletClaim) -> None:
    said = unusable(bad)
    assert said is not None
    assert said.told(bad, NODE).isprintable()


@pytest.mark.parametrize("long", [".".join(["a" * 63] * 3 + ["b" * 61]), "a" * 253])
def test_names_with_dots_and_of_253_characters_are_fine(long: str) -> None:
    assert len(long) == 253
    assert unusable(KubeletClaim("team-a", long, "u-1")) is None


def test_the_words_of_metrics_and_logs_are_those_of_the_table_and_no_others() -> None:
    found = set()
    for path in Path(claims.__file__).parents[1].rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
                word = ast.unparse(node.args[0])
                found.add(getattr(claims, word, None) or ast.literal_eval(word))
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert found == {*re.findall(r"^\| `([a-z-]+)` \|", readme.partition("| reason |")[2], re.M)}
