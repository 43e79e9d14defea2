"""What a configuration file may say; every problem is one sentence that names its place."""

from __future__ import annotations

import pytest
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.config import ConfigError, parse, parse_values, sources_of

OURS = "{name: ours, group: example.com, resource: teams, kind: Team, size: spec.size, podLabel: example.com/team}"


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_an_empty_file_is_all_defaults() -> None:
    assert parse("").checks == ("dcgm-diag", "nccl-loopback", "nccl-allreduce")


def test_a_configured_source_stands_beside_those_that_are_built_in() -> None:
    sources = sources_of(parse(f"sources: [{OURS}]"))
    assert sources.keys() == {*BUILT_IN, "ours"}
    (kind,) = sources["ours"]
    assert (kind.group, kind.resource, kind.kind) == ("example.com", "teams", "Team")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            OURS.replace("spec.size", "size of it"),
            'sources[0].size: "size of it" is neither a number nor a path',
        ),
        (
            OURS.replace("spec.size", "metadata.name"),
            'sources[0].size: "metadata.name" must begin with one of',
        ),
        (OURS.replace("name: ours", "name: volcano"), "sources[0].name: volcano is built in"),
        (OURS.replace("example.com", "apps"), "sources[0].group: must match"),
        (OURS.replace("teams", "teams/status"), "sources[0].resource: must match"),
        (f"{OURS}, {OURS}", "sources[1].name: ours is taken by another source"),
        (OURS.replace("size", "sice"), "sources[0].sice: unknown key; write size instead"),
        (
            OURS.replace(", podLabel: example.com/team", ""),
            "sources[0]: has neither podLabel nor podAnnotation",
        ),
        (
            OURS.replace("}", ", podAnnotation: a/b}"),
            "sources[0]: has both podLabel and podAnnotation",
        ),
    ],
)
def test_a_source_that_cannot_be_used_is_one_sentence(text: str, problem: str) -> None:
    found = [one for one in problems(f"sources: [{text}]") if one.startswith(problem)]
    assert len(found) == 1
    assert found[0].endswith(".")


def test_all_problems_are_told_at_once() -> None:
    assert (
        len(
            problems(
                "{leaseDuration: 1ms, checks: [a, a], sources: ["
                + OURS.replace("spec.size", "x")
                + "]}"
            )
        )
        == 3
    )


@pytest.mark.parametrize("labels", ["[not a label]", "[a/b/c]", "['']"])
def test_a_topology_label_is_a_labels_name(labels: str) -> None:
    (problem,) = problems(f"topologyLabels: {labels}")
    assert problem.startswith("topologyLabels[0]: ")


def test_a_lease_that_is_too_short_is_refused() -> None:
    (problem,) = problems("leaseDuration: 100ms")
    assert problem.startswith("leaseDuration: ")


@pytest.mark.parametrize("interval", ["1s", "-5m", "often"])
def test_an_audit_that_would_never_rest_is_refused(interval: str) -> None:
    (problem,) = problems(f"auditInterval: {interval}")
    assert problem.startswith("auditInterval: ")


@pytest.mark.parametrize("none", ["0", "'0'", "0s"])
def test_no_audit_is_a_choice(none: str) -> None:
    assert parse(f"auditInterval: {none}").audit_seconds == 0


SHARED = "global: {preflight: {checks: [{name: dcgm-diag, image: d}, {name: ours, image: o}]}}\n"


@pytest.mark.parametrize(
    ("own", "counted"),
    [
        ("", ("dcgm-diag", "ours")),
        ("checks: null", ("dcgm-diag", "ours")),
        ("checks: [own]", ("own",)),
    ],
)
def test_the_shared_checks_are_counted_by_a_controller_that_has_no_list_of_its_own(
    own: str, counted: tuple[str, ...]
) -> None:
    config, _ = parse_values(f"{SHARED}preflight-gang: {{enabled: true, {own}}}")
    assert config.checks == counted
