"""The first question: is a pod of this namespace asked about at all, and by what; then where the
configuration is from and what stays behind.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preflight_webhook.report.release import EXCLUDED, Lists, lists_of, opt_in
from said import said

POD = """
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: ml}
spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}
"""
LABEL = "nvsentinel.nvidia.com/preflight"


def namespace(name: str = "ml", label: str = "") -> str:
    labels = f", labels: {{{LABEL}: {label}}}" if label else ""
    return f"---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}{labels}}}\n"


ENABLED, DISABLED = {LABEL: "enabled"}, {LABEL: "disabled"}


@pytest.mark.parametrize(
    ("name", "labels", "lists", "asked", "why"),
    [
        ("ml", ENABLED, None, "yes", f"has the label {LABEL}=enabled"),
        ("ml", ENABLED, Lists(), "yes", f"has the label {LABEL}=enabled"),
        ("ml", {}, Lists(("ml",)), "yes", "is in `namespaces` of the chart"),
        ("ml", None, Lists(("ml",)), "yes", "only its label"),
        ("ml", DISABLED, Lists(("ml",)), "no", "opt it in by `kubectl label namespace ml"),
        ("ml", DISABLED, None, "no", f"has the label {LABEL}=disabled"),
        ("ml", {}, Lists(), "no", "does not have the label"),
        ("ml", {LABEL: "on"}, Lists(), "no", f'its label {LABEL} is "on"'),
        ("ml", {}, None, "unknown", "only if it is in `namespaces` of the chart"),
        ("ml", None, None, "unknown", f"kubectl label namespace ml {LABEL}=enabled"),
        ("ml", None, Lists(), "unknown", "give its Namespace with -f"),
        ("ml", ENABLED, Lists(excluded=("ml",)), "no", "is in excludeNamespaces"),
        ("ml", ENABLED, Lists(release="ml"), "no", "is the release's own"),
        ("kube-system", ENABLED, Lists(("kube-system",), ()), "no", "is never asked about"),
        ("kube-system", None, None, "no", "is never asked about"),
        ("kube-public", ENABLED, Lists(), "no", "is in excludeNamespaces"),
    ],
)
def test_who_is_asked_about(
    name: str, labels: dict[str, str] | None, lists: Lists | None, asked: str, why: str
) -> None:
    found = opt_in(name, labels, lists)
    assert (found.asked, why in found.why) == (asked, True), found


def test_a_webhook_configuration_says_its_lists() -> None:
    entry = {
        "clientConfig": {"service": {"namespace": "nvsentinel"}},
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]},
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": ["c", "kube-system"],
                },
                {"key": LABEL, "operator": "NotIn", "values": ["disabled", "enabled"]},
            ]
        },
    }
    assert lists_of({"webhooks": [entry, entry]}) == Lists(
        ("a", "b"), ("c", "kube-system"), "nvsentinel"
    )
    assert lists_of({}) == Lists((), (), "")


def test_a_pod_that_nobody_asks_about_is_not_said_to_be_injected() -> None:
    done = said("explain", "-f", "-", stdin=POD + namespace(label="disabled"))
    assert done.out.splitlines()[0] == "Pod train: not checked"
    assert f"opt-in: namespace ml has the label {LABEL}=disabled" in done.out
    assert "if it were asked about: injected: " in done.out
    assert "+" not in done.out  # no patch of what nobody patches
    told = json.loads(
        said("explain", "-o", "json", "-f", "-", stdin=POD + namespace(label="disabled")).out
    )
    assert (told["result"], told["patch"], told["otherwise"]["result"]) == (
        "not-opted-in",
        [],
        "injected",
    )


def test_without_its_namespace_it_says_on_what_it_depends_and_with_it_by_what() -> None:
    assert (
        "Pod train: injected, if its namespace is opted in\n"
        in said("explain", "-f", "-", stdin=POD).out
    )
    with_it = said("explain", "-f", "-", stdin=POD + namespace(label="enabled")).out
    assert with_it.startswith(
        f"Pod train: injected\n  opt-in: namespace ml has the label {LABEL}=enabled\n"
    )
    assert (
        json.loads(said("explain", "-o", "json", "-f", "-", stdin=POD).out)["opt_in"]["asked"]
        == "unknown"
    )


def test_the_values_of_the_release_say_which_namespaces_are_listed(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "preflight-injector: {enabled: true, namespaces: [ml], excludeNamespaces: [web]}\n"
    )
    config = ["explain", "--brief", "--config", str(values), "-f", "-"]
    assert said(*config, stdin=POD + namespace()).out.startswith(
        "Pod train: injected\n  opt-in: namespace ml is in `namespaces`"
    )
    assert said(*config, stdin=POD.replace("ml", "web")).out.startswith("Pod train: not checked\n")
    assert (
        f"configuration: {values} (Helm values; what is below preflight-injector is taken)"
        in said(*config, stdin=POD).out
    )


def test_defaults_are_said_to_be_defaults() -> None:
    assert (
        "configuration: the defaults (dcgm-diag alone); give the values of your release"
        in said("explain", "-f", "-", stdin=POD).out
    )


def test_the_excluded_namespaces_are_the_chart_s_own() -> None:
    import yaml

    [values] = {
        path.resolve()
        for path in (Path(__file__).parents[3] / "charts").glob("**/preflight-injector/values.yaml")
    }
    assert tuple(yaml.safe_load(values.read_text())["excludeNamespaces"]) == EXCLUDED


ENV = POD.replace(
    "image: i,", "image: i, env: [{name: FI_PROVIDER, value: efa}, {name: LD_LIBRARY_PATH, value: /opt}, {name: NCCL_NET_PLUGIN, value: x}, "
    "{name: NCCL_COMM_ID, value: x}, {name: NCCL_IB_HCA, value: x}, {name: HOME_OF_DATA, value: x}],"
)  # fmt: skip


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "ncclEnvPatterns: [NCCL_*]",
            {
                "FI_PROVIDER": "no pattern of ncclEnvPatterns names it; list it, or a pattern such as FI_*, in ncclEnvPatterns",
                "LD_LIBRARY_PATH": "it may load code or name a file; list the very name in ncclEnvPatterns",
                "NCCL_NET_PLUGIN": "it may load code or name a file; list the very name in ncclEnvPatterns",
            },
        ),
        ("ncclEnvPatterns: [NCCL_*, FI_PROVIDER, LD_LIBRARY_PATH, NCCL_NET_PLUGIN]", {}),
    ],
)
def test_what_of_the_environment_stays_behind_is_told_with_the_value_that_brings_it(
    tmp_path: Path, more: str, expected: dict[str, str]
) -> None:
    (tmp_path / "c.yaml").write_text(
        f"checks: [{{name: nccl-loopback, image: l}}]\nskipNcclWithoutNetwork: false\n{more}"
    )
    told = json.loads(
        said(
            "explain", "-o", "json", "--config", str(tmp_path / "c.yaml"), "-f", "-", stdin=ENV
        ).out
    )
    left = {one.split()[0]: one for one in told["warnings"] if "is not passed on" in one}
    assert left.keys() == expected.keys()
    assert [name for name, why in expected.items() if why not in left[name]] == []


def test_a_pod_without_a_check_of_the_fabric_leaves_nothing_behind() -> None:
    assert "is not passed on" not in said("explain", "-f", "-", stdin=ENV).out
