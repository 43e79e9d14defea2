"""The mark of what admission has judged, and what a wrapper without one comes to."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from player import PREFIX, bare_pod, job, service, wrapper
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, wrapper_from
from preflight_appwrapper.core.marks import MARK, is_judged, mark, not_judged
from preflight_appwrapper.core.plan import Finalizer, WrapperPlan
from preflight_appwrapper.core.reconcile import reconcile
from preflight_appwrapper.core.snapshot import WrapperSnapshot
from preflight_appwrapper.core.validation import ValidationResult
from preflight_appwrapper.report.explain import explain
from preflight_appwrapper.webhook.handler import Reviewer
from preflight_kube.admission.review import decode

KEY = b"k" * 64
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RULES = WrapperRules(mark_key=KEY)


def marked(
    *templates: dict[str, Any], key: bytes = KEY, namespace: str = "ns", at: datetime = NOW
) -> dict[str, Any]:
    """A wrapper with a mark of these templates that was made ``at``, itself created now."""
    raw = wrapper(*templates)
    made = [one["template"] for one in raw["spec"]["components"]]
    raw["metadata"]["annotations"][MARK] = mark(key, namespace, made, at)
    raw["metadata"]["creationTimestamp"] = NOW.strftime("%Y-%m-%dT%H:%M:%SZ")
    return raw


def judged(raw: dict[str, Any]) -> bool:
    return is_judged(KEY, wrapper_from(raw))


def test_a_mark_is_good_for_what_was_judged() -> None:
    assert judged(marked(service(), job()))
    assert judged(marked(job(), at=NOW - timedelta(minutes=4)))


def test_the_order_of_keys_and_what_kueue_writes_are_no_change() -> None:
    raw = marked(job())
    [component] = raw["spec"]["components"]
    component["template"] = dict(reversed(component["template"].items()))
    component["podSetInfos"] = [{"labels": {"a": "b"}}]
    component["podSets"] = [{"path": "template.spec.template", "replicas": 2}]
    raw["spec"]["suspend"] = True
    assert judged(raw)


def test_a_mark_of_anything_else_is_none() -> None:
    other = marked(job())
    other["spec"]["components"][0]["template"]["spec"]["parallelism"] = 3
    more = marked(job())
    more["spec"]["components"].append({"template": bare_pod()})
    swapped = marked(service(), job())
    swapped["spec"]["components"].reverse()
    foreign = [
        other,
        more,
        swapped,
        marked(job(), namespace="another"),
        marked(job(), key=b"x" * 64),
        marked(job(), at=NOW - timedelta(minutes=6)),
        marked(job(), at=NOW + timedelta(minutes=6)),
        wrapper(job()),
    ]
    assert not [raw for raw in foreign if judged(raw)]


@pytest.mark.parametrize(
    "value", ["", ".", "1", "1.", "true", "9" * 400 + ".a", "1767268800.é", "\ud7ff", "-1.0", "٣.a"]
)
def test_whatever_is_written_there_is_no_mark_and_no_fault(value: str) -> None:
    raw = marked(job())
    raw["metadata"]["annotations"][MARK] = value
    assert not judged(raw)


def test_the_time_of_a_mark_cannot_be_changed() -> None:
    raw = marked(job(), at=NOW - timedelta(minutes=6))
    proof = raw["metadata"]["annotations"][MARK].partition(".")[2]
    raw["metadata"]["annotations"][MARK] = f"{int(NOW.timestamp())}.{proof}"
    assert not judged(raw)


def test_a_template_nested_however_deep_has_no_mark() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = [deep]
    raw = marked(job())
    holder = wrapper_from(raw)
    component = msgspec.structs.replace(holder.spec.components[0], template=deep)
    spec = msgspec.structs.replace(holder.spec, components=(component,))
    assert not is_judged(KEY, msgspec.structs.replace(holder, spec=spec))
    while deep:  # bit by bit: to forget it at once is a recursion, too
        deep = deep.pop() if isinstance(deep, list) else {}


# --- what the controller does


def suspended(raw: dict[str, Any]) -> AppWrapper:
    made = copy.deepcopy(raw)
    made["status"] = {"phase": "Suspended"}
    return wrapper_from(made)


def decided(found: AppWrapper, rules: WrapperRules = RULES) -> WrapperPlan:
    return reconcile(found, WrapperSnapshot(), rules, NOW)


def test_what_has_a_mark_gets_its_finalizer_and_what_has_none_nothing() -> None:
    assert decided(suspended(marked(job()))).actions == (Finalizer(wanted=True),)
    made = decided(suspended(wrapper(job())))
    assert not made.actions
    assert made.status.phase == "Suspended"
    [event] = made.say
    assert event.warning
    assert event.reason == "NotJudged"
    assert f"kubectl annotate appwrapper w -n ns --overwrite {MARK}=again" in event.message
    [condition] = made.status.conditions
    assert (condition.type, condition.status, condition.reason, condition.message) == (
        "QuotaReserved",
        "False",
        "NotJudged",
        event.message,
    )


def test_without_a_key_no_mark_is_asked_for() -> None:
    assert decided(suspended(wrapper(job())), WrapperRules()).actions


def test_of_an_excluded_namespace_nothing_is_created_whatever_its_mark() -> None:
    rules = msgspec.structs.replace(RULES, excluded=frozenset({"ns"}))
    for raw in (marked(job()), wrapper(job())):
        made = decided(suspended(raw), rules)
        assert not made.actions
        assert "webhook.excludeNamespaces" in made.say[0].message
    assert not_judged(suspended(marked(job())), rules, begun=True)


def test_what_was_created_before_there_were_marks_is_created_again_after_a_reset() -> None:
    raw = wrapper(job(), annotations={"retryPausePeriodDuration": "0s"})
    raw["metadata"]["finalizers"] = ["workload.codeflare.dev/finalizer"]
    long_ago = "2026-01-01T11:00:00Z"
    deployed = {"type": "ResourcesDeployed", "status": "False", "lastTransitionTime": long_ago}
    raw["status"] = {
        "phase": "Resetting",
        "conditions": [{**deployed, "reason": "Resetting", "message": ""}],
        "componentStatus": [{"name": "train", "kind": "Job", "apiVersion": "batch/v1"}],
    }
    assert decided(wrapper_from(raw)).status.phase == "Resuming"


def test_explain_says_what_the_controller_waits_for_without_its_key() -> None:
    raw = wrapper(job())
    found = suspended(raw)
    found = msgspec.structs.replace(found, status=decided(found).status)
    made = reconcile(found, WrapperSnapshot(), WrapperRules(), NOW)
    explained = explain(found, WrapperSnapshot(), made, NOW)
    assert explained.next is not None
    assert MARK in explained.next.why


def test_the_mark_is_no_parameter() -> None:
    assert MARK.startswith(PREFIX)
    assert not decided(suspended(marked(job()))).say


@pytest.mark.anyio
async def test_a_mark_that_a_new_wrapper_brings_is_worth_nothing_whoever_was_given_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = marked(job())

    async def refused(*_: object) -> ValidationResult:
        return ValidationResult(problems=("its author may not create that",))

    reviewer = Reviewer(None, RULES)  # type: ignore[arg-type]
    monkeypatch.setattr(reviewer, "_judged", refused)
    review: dict[str, Any] = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "u",
            "kind": {"kind": "AppWrapper"},
            "resource": {"resource": "appwrappers"},
            "operation": "CREATE",
            "namespace": "ns",
            "object": raw,
        },
    }
    answer = await reviewer.mutate(decode(json.dumps(review).encode()))
    patch: list[Any] = list(answer.patch)
    written = [op["value"] for op in patch if op["path"].endswith("appwrapper~1judged")]
    assert written == [""]
