"""What a check may use: all that the pod has reserved up to `checks[].resources`, and never more
than the pod costs anyway.
"""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st
from pods import GPU, amount, cost, of, qos
from pods import judged as decided
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.admit import decide

CPUS = ["500m", "1", "7500m", "8", "32", "95999m", "96", "191"]
MEMORIES = ["1Mi", "512Mi", "8Gi", "9Gi", "64Gi", "100G", "800Gi", "1Ti", "2Ti", "1099511627777"]


def config(resources: str = "{}") -> Config:
    return parse(f"checks: [{{name: mine, image: m, resources: {resources}}}]")


def judged(pod: dict[str, Any], with_config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the pod with its check, the check)."""
    _, after = decided(pod, with_config)
    return after, after["spec"]["initContainers"][0]


def pod_of(*resources: dict[str, Any], own: dict[str, Any] | None = None) -> dict[str, Any]:
    containers = [
        {"name": f"c{i}", "image": "i", "resources": one} for i, one in enumerate(resources)
    ]
    spec: dict[str, Any] = {"containers": containers}
    if own is not None:
        spec["resources"] = own
    return {"metadata": {"name": "p"}, "spec": spec}


@st.composite
def sized(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """(its QoS class, a GPU pod as jobs have them)."""
    quality = draw(st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]))
    every = []
    for number in range(draw(st.integers(1, 2))):
        amounts = {"cpu": draw(st.sampled_from(CPUS)), "memory": draw(st.sampled_from(MEMORIES))}
        gpus = {GPU: str(draw(st.sampled_from([1, 2, 4, 8])))} if number == 0 else {}
        match quality:
            case "Guaranteed":
                every.append({"requests": amounts | gpus, "limits": amounts | gpus})
            case "Burstable":
                every.append({"requests": amounts | gpus, "limits": gpus})
            case _:
                every.append({"requests": gpus, "limits": gpus})
    return quality, pod_of(*every)


def is_whole(container: dict[str, Any]) -> bool:
    return all(
        amount(side.get("memory", "0")).denominator == 1
        and (amount(side.get("cpu", "0")) * 1000).denominator == 1
        for side in container["resources"].values()
        if isinstance(side, dict)
    )


@given(sized())
def test_a_check_gets_what_its_pod_has_reserved_in_whole_bytes_and_millicores(
    case: tuple[str, dict[str, Any]],
) -> None:
    quality, pod = case
    after, check = judged(pod, config())
    assert (qos(after), qos(pod)) == (quality, quality)
    assert is_whole(check)
    assert of(check, "requests", "memory") == cost(pod, "requests", "memory")
    short = cost(pod, "requests", "cpu") - of(check, "requests", "cpu")
    assert short in {0, Fraction(1, 1000)}
    if quality != "Guaranteed" or len(pod["spec"]["containers"]) == 1:
        assert short == 0


@given(sized(), st.sampled_from(["4", "2500m"]), st.sampled_from(["16Gi", "33Mi"]))
def test_a_check_stays_below_what_the_operator_gives_it(
    case: tuple[str, dict[str, Any]], cpu: str, memory: str
) -> None:
    given_ = f"{{requests: {{cpu: '{cpu}', memory: {memory}}}, limits: {{cpu: '{cpu}', memory: {memory}}}}}"
    after, check = judged(case[1], config(given_))
    assert of(check, "requests", "cpu") <= amount(cpu)
    assert of(check, "requests", "memory") == min(
        amount(memory), cost(case[1], "requests", "memory")
    )
    assert qos(after) == case[0]


OWN = {"requests": {"cpu": "8", "memory": "1Ti"}, "limits": {"cpu": "96", "memory": "2Ti"}}


def test_in_a_pod_with_resources_of_its_own_a_check_may_use_them_all() -> None:
    _, check = judged(pod_of({"limits": {GPU: "8"}}, own=OWN), config())
    assert check["resources"] == {"requests": {GPU: "8"}, "limits": {GPU: "8"}}


def test_there_too_the_operator_may_hold_it_to_less() -> None:
    _, check = judged(
        pod_of({"limits": {GPU: "8"}}, own=OWN), config("{limits: {cpu: 16, memory: 100Gi}}")
    )
    assert check["resources"]["limits"] == {GPU: "8", "cpu": "16", "memory": "107374182400"}
    assert check["resources"]["requests"] == {GPU: "8", "cpu": "8", "memory": "107374182400"}


def test_it_is_never_limited_to_more_than_the_pod_is() -> None:
    _, check = judged(
        pod_of({"limits": {GPU: "8"}}, own=OWN), config("{limits: {cpu: 200, memory: 4Ti}}")
    )
    assert amount(check["resources"]["limits"]["cpu"]) == 96
    assert amount(check["resources"]["limits"]["memory"]) == amount("2Ti")
    assert amount(check["resources"]["requests"]["memory"]) == amount("1Ti")


def test_what_the_pods_own_resources_leave_open_comes_from_its_containers() -> None:
    pod = pod_of(
        {"requests": {"memory": "64Gi"}, "limits": {GPU: "8"}}, own={"limits": {"cpu": "32"}}
    )
    _, check = judged(pod, config())
    assert check["resources"]["requests"] == {GPU: "8", "memory": "68719476736"}


def test_beside_a_sidecar_a_check_requests_only_the_rest_of_the_pods_own() -> None:
    pod = pod_of({"limits": {GPU: "8"}}, own=OWN)
    sidecar = {
        "name": "s",
        "image": "i",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "6"}},
    }
    pod["spec"]["initContainers"] = [sidecar]
    with_config = parse(
        "checks: [{name: mine, image: m, placement: last, resources: {limits: {cpu: 16}}}]",
    )
    patch = decide(json.dumps(pod).encode(), "ml", with_config).patch
    check = jsonpatch.apply_patch(copy.deepcopy(pod), patch)["spec"]["initContainers"][1]
    assert (check["resources"]["requests"]["cpu"], check["resources"]["limits"]["cpu"]) == (
        "2",
        "16",
    )


def test_a_limit_without_a_request_is_never_left_to_become_one() -> None:
    none = {"requests": {"cpu": "0"}, "limits": {"cpu": "4", GPU: "1"}}
    pod = pod_of(none)
    after, _ = judged(pod, config())
    assert cost(after, "requests", "cpu") == 0


def test_each_check_of_a_pod_has_its_own_most_and_requests_no_more_than_its_limit() -> None:
    most = "resources: {requests: {cpu: 4}, limits: {cpu: 2}}"
    both = parse(f"checks: [{{name: small, image: s, {most}}}, {{name: plain, image: p}}]")
    resources = {"requests": {"cpu": "6"}, "limits": {GPU: "1", "cpu": "8", "memory": "8Gi"}}
    main = {"name": "main", "image": "i", "resources": resources}
    after, _ = judged({"metadata": {"name": "p"}, "spec": {"containers": [main]}}, both)
    given_ = [one["resources"] for one in after["spec"]["initContainers"]]
    assert [(one["requests"]["cpu"], one["limits"]["cpu"]) for one in given_] == [
        ("2", "2"),
        ("6", "8"),
    ]
