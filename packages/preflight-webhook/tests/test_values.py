"""`validate-config` takes what people have: the configuration, the chart's values, or those of the
umbrella; and says what it took.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helm_python import Chart
from preflight_testing.helm import COMPUTEDOMAIN, PARTS, REQUIRED, UMBRELLA, Values, render
from preflight_webhook.report.release import OWN, parse
from said import Said, said

CHARTS = Path(__file__).parents[3] / "charts"


def validated(folder: Path, text: str) -> tuple[Said, str]:
    file = folder / "values.yaml"
    file.write_text(text)
    done = said("validate-config", str(file))
    return done, f"{file}: "


def test_the_chart_s_own_values_are_good() -> None:
    for name in ("preflight-injector", "preflight"):
        [values] = {path.resolve() for path in CHARTS.glob(f"**/{name}/values.yaml")}
        given = parse(values.read_text())
        assert [check.name for check in given.config.checks] == ["dcgm-diag"]
        assert given.source


def test_every_value_by_which_the_chart_is_deployed_is_known() -> None:
    own = json.loads((CHARTS / "schema" / "preflight-injector.json").read_text())["properties"]
    common = json.loads((CHARTS / "schema" / "common.json").read_text())
    assert {*own, *common["shared"], *common["each"]} <= OWN


def test_values_as_helm_shows_all_of_them_are_those_that_were_given() -> None:
    """`helm get values --all` has a key for the library chart, too."""
    with Chart.load(UMBRELLA) as chart:
        computed = chart.merge_values({"preflight-injector": {"dcgm": {"diagLevel": 1}}})
    assert "preflight-common" in computed["preflight-injector"]
    assert parse(json.dumps(computed)).config.dcgm.diag_level == 1


def test_our_part_of_the_umbrella_is_taken_and_its_problems_have_their_whole_path(
    tmp_path: Path,
) -> None:
    good, at = validated(
        tmp_path,
        "preflight-gang: {enabled: true}\npreflight-injector: {enabled: true, dcgm: {diagLevel: 2}}",
    )
    assert (good.status, good.out.splitlines()) == (
        0,
        [
            f"{at}no problem found; checks: dcgm-diag; Helm values; what is below preflight-injector is taken"
        ],
    )
    bad, at = validated(
        tmp_path,
        "preflight-injector: {enabled: true, chekcs: [], dcgm: {diagLevel: 9}, namespaces: ml}",
    )
    assert (bad.status, bad.err.splitlines()) == (
        2,
        [
            f'{at}preflight-injector.namespaces: must be a list, e.g. [ml]; found the string "ml".',
            f"{at}preflight-injector.chekcs: unknown key; write checks instead, or remove it.",
            f"{at}preflight-injector.dcgm.diagLevel: must be at most 4; found the number 9.",
        ],
    )


def test_what_stands_once_for_all_parts_is_added_as_the_chart_adds_it(tmp_path: Path) -> None:
    source = "{name: ours, group: a.example.com, resource: groups, kind: Group, size: spec.size, podLabel: a.example.com/g}"
    given = parse(
        f"global: {{preflight: {{gangSources: [{source}], instanceTypeLabel: a/b}}}}\npreflight-injector: {{enabled: true}}"
    )
    assert [one.name for one in given.config.gang_discovery.sources] == ["ours"]
    assert given.config.nccl_topology.instance_type_label == "a/b"


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"preflight-injector": {"gpuDetection": {"resourceNames": ["nvidia.com/gpu", "a.com/b"]}}},
        {"preflight-injector": {"deviceVariables": {"enabled": True}}},
        {
            "preflight-gpu-scheduler": {"countResource": "a.com/gpu"},
            "global": {"preflight": {"gpuClaimResource": "a.com/gpu"}},
        },
    ],
    ids=["defaults", "names", "enabled", "counted-otherwise"],
)
def test_beside_the_gpu_scheduler_its_pods_are_checked_by_the_values_and_by_what_they_render(
    values: Values, tmp_path: Path
) -> None:
    parts = ("preflight-injector", "preflight-gpu-scheduler")
    own = {path.name: REQUIRED.get(path, {}) for path in PARTS.iterdir() if path.name in parts}
    merged = {
        **values,
        **{part: {"enabled": True, **own[part], **values.get(part, {})} for part in parts},
    }
    resource = values.get("global", {}).get("preflight", {}).get("gpuClaimResource")
    limits = {resource or "gpu.scheduling/gpu": 2}
    (tmp_path / "values.yaml").write_text(json.dumps(merged))
    [made] = [
        one
        for one in render(UMBRELLA, merged)
        if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "preflight-injector")
    ]
    (tmp_path / "config.yaml").write_text(made["data"]["config.yaml"])
    named = {"metadata": {"name": "p", "annotations": {"gpu.scheduling/claim": "two"}}}
    for container, told in (
        ({}, "the GPUs of annotation gpu.scheduling/claim"),
        ({"resources": {"limits": limits}}, f"2 {resource or 'gpu.scheduling/gpu'}"),
    ):
        spec = {"containers": [{"name": "c", "image": "i", **container}]}
        pod = json.dumps({"kind": "Pod", **named, "spec": spec})
        for config in ("values.yaml", "config.yaml"):
            file = str(tmp_path / config)
            done = said("explain", "--brief", "-f", "-", "--config", file, stdin=pod)
            assert (done.status, done.err) == (0, "")
            assert "Pod p: injected" in done.out
            assert f"dcgm-diag will test {told} before" in done.out


@pytest.mark.parametrize("own", [{}, {"networkDetection": {"deviceClasses": ["a.com"]}}])
def test_beside_compute_domains_their_channel_is_a_network_by_the_values_as_by_what_they_render(
    own: Values,
) -> None:
    values: Values = {
        "preflight-injector": {"enabled": True, **own},
        "preflight-computedomain": {"enabled": True, **REQUIRED[COMPUTEDOMAIN]},
    }
    [made] = [
        one
        for one in render(UMBRELLA, values)
        if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "preflight-injector")
    ]
    rendered = parse(made["data"]["config.yaml"]).config.network_detection
    assert "compute-domain-default-channel.nvidia.com" in rendered.device_classes
    given = parse(json.dumps(values)).config.network_detection
    assert (given.resource_names, given.device_classes) == (
        rendered.resource_names,
        rendered.device_classes,
    )


@pytest.mark.parametrize("registry", ["", "mirror.example:5000/a", "mirror/"])
def test_images_of_checks_come_from_the_values_registry_as_in_what_they_render(
    registry: str,
) -> None:
    images = ("i", "i:1", "a/i", "a.example/i@sha256:0", "a:5000/b/i", "localhost/i", "a/b.c/i")
    checks = [{"name": f"c{n}", "image": image} for n, image in enumerate(images)]
    values: Values = {
        "global": {"imageRegistry": registry, "preflight": {"checks": checks}},
        "preflight-injector": {"enabled": True},
    }
    [made] = [
        one
        for one in render(UMBRELLA, values)
        if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "preflight-injector")
    ]
    rendered = parse(made["data"]["config.yaml"]).config.checks
    assert [check.image for check in parse(json.dumps(values)).config.checks] == [
        check.image for check in rendered
    ]


@pytest.mark.parametrize("above", [{}, {"imageRegistry": "mirror"}, {"preflight": {"checks": []}}])
def test_what_stands_once_for_all_parts_holds_above_what_a_part_says_of_it(above: Values) -> None:
    below = {
        "imageRegistry": "other",
        "preflight": {
            "checks": [{"name": "c", "image": "a.example/i"}],
            "instanceTypeLabel": "a/b",
        },
    }
    values: Values = {"global": above, "preflight-injector": {"enabled": True, "global": below}}
    [config_map] = [
        item
        for item in render(UMBRELLA, values)
        if (item["kind"], item["metadata"]["name"]) == ("ConfigMap", "preflight-injector")
    ]
    given, rendered = (
        parse(json.dumps(values)).config,
        parse(config_map["data"]["config.yaml"]).config,
    )
    assert [check.image for check in given.checks] == [check.image for check in rendered.checks]
    assert given.nccl_topology.instance_type_label == rendered.nccl_topology.instance_type_label


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpuDetection: {resourceNames: nvidia.com/gpu}", 'must be a list, e.g. [nvidia.com/gpu]; found the string "nvidia.com/gpu".'),
        ("checkTimeout: 300", 'checkTimeout: must be a string, e.g. "300" in quotes; found the number 300.'),
        ("checks: [{name: a}]", "checks[0].image: is missing; set it."),
        ("checks: [{name: a, image: i, enforcement: maybe}]", 'checks[0].enforcement: must be one of enforce, observe; found the string "maybe".'),
        ("checks: []\nchecks: []", "the key checks is in line 1 already"),
        ("checks: [{name: a, image: i}, {name: a, image: i}]", "is also the name of checks[0]"),
        ("nccl: {loopbackThresholdGBps: -1}", "must be more than 0; found the number -1."),
        ("checks: [{name: A, image: i}]", "(Lower-case letters, digits and '-'); found the string"),
        ("checks: [5]", "checks[0]: must be a map; found the number 5."),
        ("replicas: 2\ngangTimeout: ten", 'gangTimeout: "ten" is not a duration'),
    ],
)  # fmt: skip
def test_problems_are_sentences(tmp_path: Path, text: str, says: str) -> None:
    done, at = validated(tmp_path, text)
    assert (done.status, says in done.err, done.out) == (2, True, ""), done.err
    assert all(line.startswith(at) and line.endswith(".") for line in done.err.splitlines())


def test_unknown_keys_list_the_known_ones_once(tmp_path: Path) -> None:
    done, _ = validated(tmp_path, "aaa: 1\nbbb: 2\nccc: 3\n")
    assert (done.err.count("known here are"), len(done.err.splitlines())) == (1, 3)


def test_no_check_at_all_is_a_warning(tmp_path: Path) -> None:
    done, at = validated(tmp_path, "checks: []")
    assert (done.status, done.out) == (0, f"{at}no problem found; checks: none\n")
    assert done.err == f"{at}warning: checks: is empty, so no pod is checked; name at least one.\n"


def test_checks_written_once_for_all_parts_are_ours_too_and_named_where_they_are(
    tmp_path: Path,
) -> None:
    good = "global: {preflight: {checks: [{name: mine, image: i}]}}\npreflight-injector: {enabled: true, dcgm: {diagLevel: null}}"
    assert [check.name for check in parse(good).config.checks] == ["mine"]
    done, at = validated(tmp_path, good.replace("image: i", "imge: i"))
    assert done.err.splitlines() == [
        f"{at}global.preflight.checks[0].image: is missing; set it.",
        f"{at}global.preflight.checks[0].imge: unknown key; write image instead, or remove it.",
    ]
    own = good.replace("enabled: true", "checks: [{name: own, image: i}]")
    assert [check.name for check in parse(own).config.checks] == ["own"]


SHARED = "global: {preflight: {checks: [{name: shared, image: s}]}}\n"
HELPERS = CHARTS / "preflight/charts/preflight-injector/templates/_helpers.tpl"


@pytest.mark.parametrize(
    ("own", "taken"),
    [
        ("{enabled: true}", ["shared"]),
        ("{enabled: true, checks: null}", ["shared"]),
        ("{enabled: true, checks: [{name: own, image: o}]}", ["own"]),
        ("{enabled: true, checks: []}", []),
    ],
)
def test_the_shared_checks_are_those_of_an_injector_that_has_none_of_its_own(
    own: str, taken: list[str]
) -> None:
    assert [
        check.name for check in parse(f"{SHARED}preflight-injector: {own}").config.checks
    ] == taken


def test_what_the_chart_keeps_for_itself_is_no_part_of_the_configuration() -> None:
    [left_out] = re.findall(r"omit \.Values((?:\s+\"[\w-]+\")+)", HELPERS.read_text())
    assert {*re.findall(r"[\w-]+", left_out)} == OWN
