from __future__ import annotations

import pytest
from preflight_testing.reviews import EVERYTHING
from preflight_webhook.config.config import ConfigError, parse


def test_the_configuration_of_the_bench_is_good() -> None:
    assert len(parse(EVERYTHING).checks) == 3


def test_an_empty_file_is_a_configuration_without_checks() -> None:
    assert parse("").checks == ()


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_every_problem_is_listed_with_its_path() -> None:
    found = problems(
        "checks: [{name: A, image: '', x: 1}, {name: b}, {name: b, image: c, timeout: 5x}]\n"
        "dcgm: {diagLevel: 9}\nfoo: 1\ncheckTimeout: 5x\nplatformConnector: {auth: {expirationSeconds: 60}}"
    )
    paths = {problem.split(":")[0] for problem in found}
    assert paths == {
        "foo", "checks[0].name", "checks[0].image", "checks[0].x", "checks[1].image", "checks[2].name", "checks[2].timeout",
        "dcgm.diagLevel", "checkTimeout", "platformConnector.auth.expirationSeconds",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["[1, 2]", "a: b: c", "\t", "checks: [1]", "checks: {}", "dcgm: 5", "'"]
)
def test_what_is_no_configuration_is_refused_in_sentences(text: str) -> None:
    assert all(problem.count("\n") == 0 and problem.endswith(".") for problem in problems(text))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("gangDiscovery: {method: gossip}", "gangDiscovery.method"),
        ("gangDiscovery: {optIn: [jobset, cron]}", "gangDiscovery.optIn[1]"),
        ("checks: [{name: a, image: b, gang: 1}]", "checks[0].gang"),
        ("gangDiscovery: {labels: {gangIdLabel: a b}}", "gangDiscovery.labels.gangIdLabel"),
        ("gpuDetection: {resourceNames: [nvidia.com/*]}", "gpuDetection.resourceNames[0]"),
        ("gpuDetection: {deviceClasses: [gpu.*]}", "gpuDetection.deviceClasses[0]"),
    ],
)
def test_words_that_nothing_could_match_are_named(text: str, path: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(f"{path}: ")


def test_labels_may_be_left_without_a_name_as_before() -> None:
    """A chart's way to do without: no pod has a label without a name."""
    labels = parse("gangDiscovery: {labels: {gangIdLabel: '', gangSizeLabel: ''}}")
    assert labels.gang_discovery.labels.gang_id_label == ""


def test_a_mount_of_a_volume_that_nobody_has_is_a_problem_once() -> None:
    wrong = (
        "checks: [{name: a, image: b, container: {volumeMounts: [{name: data, mountPath: /d}]}}]"
    )
    where = "checks[0].container.volumeMounts[0].name: "
    assert [problem.startswith(where) for problem in problems(wrong)] == [True]
    beside = problems(f"{wrong}\nunknown: 1")
    assert len([problem for problem in beside if problem.startswith(where)]) == 1
    assert len(beside) == 2
