"""A check talks to the server that the operator named, and no pod leads it elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_webhook.config.addresses import Host, hosts_in
from preflight_webhook.config.config import Config, ConfigError, parse
from preflight_webhook.core.admit import decide
from preflight_webhook.core.decision import Decision

NAME = "dcgm-hostengine.nvsentinel.svc"
NAMED = parse(f"checks: [{{name: dcgm-diag, image: d}}]\ndcgm: {{hostengineAddr: '{NAME}:5555'}}")
FINAL = parse(
    f"checks: [{{name: dcgm-diag, image: d}}]\ndcgm: {{hostengineAddr: '{NAME}.cluster.local.:5555'}}"
)
OUTSIDE = parse(
    "checks: [{name: dcgm-diag, image: d}]\ndcgm: {hostengineAddr: 'engine.gpu.example.com:5555'}"
)
BY_ADDRESS = parse("checks: [{name: dcgm-diag, image: d}]")


def judged(
    config: Config, gpus: str = "8", metadata: dict[str, Any] | None = None, **spec: Any
) -> Decision:
    main = {
        "name": "main",
        "image": "i",
        "resources": {"limits": {"nvidia.com/gpu": gpus} if gpus else {}},
    }
    pod = {"metadata": {"name": "p", **(metadata or {})}, "spec": {"containers": [main], **spec}}
    return decide(json.dumps(pod).encode(), "ml", config)


def aliases(*names: str) -> dict[str, Any]:
    return {"hostAliases": [{"ip": "127.0.0.1", "hostnames": list(names)}]}


DEVIATING: list[tuple[dict[str, Any], str]] = [
    (aliases(NAME), "spec.hostAliases"),
    (aliases("db.example.com", NAME.upper()), "spec.hostAliases"),
    (aliases(NAME + ".cluster.local"), "spec.hostAliases"),
    (aliases("dcgm-hostengine"), "spec.hostAliases"),
    (aliases("dcgm-hostengine.nvsentinel"), "spec.hostAliases"),
    ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.1.1.1"]}}, "spec.dnsPolicy"),
    ({"dnsPolicy": "Default"}, "ClusterFirstWithHostNet"),
    ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
    ({"hostNetwork": True, "dnsPolicy": "ClusterFirst"}, "ClusterFirstWithHostNet"),
    ({"dnsConfig": {"nameservers": ["10.1.1.1"]}}, "spec.dnsConfig.nameservers"),
    ({"dnsConfig": {"searches": ["evil.example.com"]}}, "spec.dnsConfig.searches"),
    ({"dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}, '"ndots"'),
    ({"dnsConfig": {"options": [{"name": "ndots"}]}}, '"ndots"'),
    ({"dnsConfig": {"options": [{"name": "attempts", "value": "0"}]}}, '"attempts"'),
    ({"hostnameOverride": NAME}, "hosts file"),
    ({"metadata": {"name": NAME}}, "hosts file"),
]


@pytest.mark.parametrize(("spec", "what"), DEVIATING)
def test_a_pod_that_could_lead_the_check_elsewhere_is_denied_and_told_what_to_do(
    spec: dict[str, Any], what: str
) -> None:
    decision = judged(NAMED, **spec)
    assert decision.denied
    assert what in decision.message
    assert f"dcgm-diag to another server than {NAME}" in decision.message
    assert "$(NODE_IP):5555" in decision.message


@pytest.mark.parametrize(("spec", "what"), DEVIATING)
def test_an_address_cannot_be_led_elsewhere(spec: dict[str, Any], what: str) -> None:
    assert judged(BY_ADDRESS, **spec).result == "injected", what


@pytest.mark.parametrize(("spec", "what"), DEVIATING)
def test_pods_without_gpus_may_do_as_they_like(spec: dict[str, Any], what: str) -> None:
    assert judged(NAMED, gpus="", **spec).result == "no-gpu", what


@pytest.mark.parametrize(
    "spec",
    [
        {},
        aliases("db.example.com", "dcgm", "dcgm-hostengine2", "x" + NAME),
        {"dnsPolicy": "ClusterFirst"},
        {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
        {
            "dnsConfig": {
                "options": [{"name": "ndots", "value": "5"}, {"name": "single-request-reopen"}]
            }
        },
        {"hostname": "dcgm-hostengine", "subdomain": "nvsentinel"},
        {"metadata": {"name": "dcgm-hostengine"}},
    ],
)
def test_what_leads_nothing_elsewhere_is_let_pass(spec: dict[str, Any]) -> None:
    assert judged(NAMED, **spec).result == "injected"


def test_a_name_with_its_final_dot_is_looked_for_nowhere_else() -> None:
    assert judged(
        FINAL, dnsConfig={"searches": ["x.example"], "options": [{"name": "ndots", "value": "1"}]}
    ).checks
    assert judged(FINAL, dnsConfig={"nameservers": ["10.1.1.1"]}).denied
    assert judged(FINAL, **aliases(NAME + ".cluster.local")).denied


def test_a_name_that_the_nodes_own_dns_knows_may_be_asked_there() -> None:
    assert judged(OUTSIDE, dnsPolicy="Default").checks == ["dcgm-diag"]
    assert judged(OUTSIDE, hostNetwork=True).checks == ["dcgm-diag"]
    assert judged(OUTSIDE, dnsPolicy="None").denied


def test_a_check_that_holds_nobody_back_is_left_out_instead() -> None:
    config = parse(
        f"checks: [{{name: dcgm-diag, image: d, enforcement: observe}}]\ndcgm: {{hostengineAddr: '{NAME}:5555'}}"
    )
    decision = judged(config, **aliases(NAME))
    assert decision.label == "no-checks-redirected"
    assert "spec.hostAliases" in decision.skipped[0].message


@pytest.mark.parametrize(
    "env",
    [
        "env: [{name: SERVER, value: 'https://engine.example.com/api'}]",
        "env: [{name: SERVERS, value: '10.0.0.1:80,engine.example.com:80'}]",
        "env: [{name: WHERE, value: engine.example.com}, {name: SERVER, value: '$(WHERE):80'}]",
        "env: [{name: SERVER, value: 'http://user@engine.example.com:80/'}]",
        "container: {env: [{name: SERVER, value: 'engine.example.com:80'}]}",
    ],
)
def test_the_names_in_any_checks_variables_count(env: str) -> None:
    config = parse(f"checks: [{{name: mine, image: m, {env}}}]")
    assert judged(config, **aliases("engine.example.com")).denied
    assert judged(config, **aliases("other.example.com")).checks == ["mine"]


def test_a_name_that_is_known_in_the_container_alone_may_be_any() -> None:
    config = parse(
        "checks: [{name: mine, image: m, env: [{name: SERVER, value: '$(NODE_NAME):80'}]}]"
    )
    assert judged(config, **aliases("node-1")).denied
    assert judged(config, dnsPolicy="None").denied
    assert judged(config).checks == ["mine"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("$(NODE_IP):5555", []),
        ("[$(NODE_IP)]:5555", []),
        ("10.0.0.1:5555", []),
        ("[fd00::1]:5555", []),
        ("unix:///var/run/x.sock", []),
        ("300s", []),
        ("a3=gcp.xml,b=c.xml", []),
        ("/usr/bin:/bin", []),
        ("Engine.Example.COM:5555", [Host("engine.example.com")]),
        ("engine.example.com.:5555", [Host("engine.example.com", absolute=True)]),
        ("$(SOMETHING):80", [Host("*")]),
        ("x$(NODE_IP):80", [Host("*")]),
        ("http://[::1]/", []),
        ("tcp://engine", [Host("engine")]),
    ],
)
def test_names_are_found_and_addresses_are_none(value: str, found: list[Host]) -> None:
    assert list(hosts_in(value, {"NODE_IP": None})) == found


@given(st.text(max_size=40))
def test_reading_a_value_never_raises(value: str) -> None:
    list(hosts_in(value, {}))


@pytest.mark.parametrize("address", ["engine:5555", "dcgm-hostengine.nvsentinel:5555"])
def test_a_name_that_the_pods_own_namespace_can_answer_to_is_no_configuration(address: str) -> None:
    with pytest.raises(
        ConfigError, match=r"dcgm\.hostengineAddr: a Service in the pod's own namespace"
    ):
        parse(f"dcgm: {{hostengineAddr: '{address}'}}")
