"""`report`: what the checks found in a cluster, of the controller's Events and of NodeHealths."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
import pytest
from preflight_gang.api.types import Pod
from preflight_gang.cli import main
from preflight_gang.core.results import EndedCheck, event_of
from preflight_gang.report.fleet import as_json, assemble, page
from preflight_kube.api.node_health import NodeHealthStatus
from preflight_proto.result import Result
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apidouble.http import ApiAnswer
from preflight_testing.documents import ended

SINCE = "2026-11-20T00:00:00Z"
HEALTH = {
    "node-b": msgspec.convert(
        {
            "state": "Sick",
            "since": "2026-11-24T09:00:00Z",
            "foundBy": "NCCLLoopbackTestBandwidth",
            "gpu": "GPU-3",
            "measured": 120.5,
            "usual": 460.0,
        },
        NodeHealthStatus,
    )
}


def event(
    node: str,
    outcome: str,
    *,
    gated: bool = True,
    status: int = 1,
    ran: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """As the controller writes it about a run."""
    about: dict[str, Any] = {"code": "CODE", "reason": "why: it is so.", **more}
    time = about.pop("time", "2026-11-24T10:00:00Z")
    result = Result(v=1, check="nccl-loopback", outcome=outcome, gated=gated, duration=1.0, **about)
    ended = EndedCheck(
        run="1",
        check="nccl-loopback",
        result=result,
        exit_code=status,
        started=None,
        finished=None,
        ran=ran,
    )
    body = {"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": {"nodeName": node}}
    return event_of(msgspec.convert(body, Pod), ended, time)


def test_what_held_a_pod_back_and_what_would_have_are_told_apart() -> None:
    events = [event("node-a", "failed"), event("node-b", "failed", gated=False)]
    found = assemble(events, {}, SINCE)
    assert [(one.node, one.observed) for one in found.findings] == [
        ("node-a", False),
        ("node-b", True),
    ]
    assert {one.why for one in found.findings} == {"why: it is so", "why: it is so."}


def test_what_could_not_be_judged_and_was_let_start_held_nobody_back() -> None:
    events = [
        event("node-a", "inconclusive", status=0),
        event("node-b", "inconclusive", status=1),
        event("node-c", "inconclusive", status=0, gated=False),
        event("node-d", "inconclusive", status=0, ran=False),  # its image cannot be pulled
    ]
    found = assemble(events, {}, SINCE)
    assert [(one.node, one.observed, one.allowed) for one in found.findings] == [
        ("node-a", False, True),
        ("node-b", False, False),
        ("node-c", True, False),
        ("node-d", False, False),
    ]
    assert "2 runs held a pod back, 1 would have" in page(found)


def test_a_failure_that_was_let_start_is_not_said_to_be_unjudged() -> None:
    found = assemble([event("node-a", "failed", status=0)], {}, SINCE)
    assert [(one.outcome, one.observed, one.allowed) for one in found.findings] == [
        ("failed", False, True)
    ]
    assert "<h2>Was let start all the same: 1</h2>" in page(found)
    assert "judged" not in page(found)


def test_the_headline_says_since_when_and_nothing_of_what_is_not_known() -> None:
    kept = page(assemble([event("node-a", "passed", code="OK")], HEALTH, SINCE))
    assert "<h1>1 sick: node-b; no pod was held back since 2026-11-24T10:00:00Z</h1>" in kept
    bare = page(assemble([], {}, SINCE))
    assert "Which node is sick is not known; of what the checks found no Event is left" in bare


def test_of_a_run_that_passed_its_time_counts_and_nothing_is_found() -> None:
    events = [
        event("node-a", "passed", code="OK", measured=400.0, time="2026-11-24T09:00:00Z"),
        event("node-a", "passed", code="OK", measured=410.0, expected=380.0),
    ]
    found = assemble(events, {}, SINCE)
    assert (found.findings, found.oldest) == ([], "2026-11-24T09:00:00Z")


def test_events_of_others_and_older_ones_do_not_count() -> None:
    old = event("node-a", "failed", time="2026-11-19T23:59:59Z")
    foreign = {**event("node-a", "failed"), "source": {"component": "kubelet"}}
    found = assemble([old, foreign], {}, SINCE)
    assert (found.findings, found.oldest) == ([], "")


def test_nodes_are_shown_as_preflight_nodes_has_them() -> None:
    found = assemble([event("node-a", "failed")], HEALTH, SINCE)
    text = page(found)
    assert "1 sick: node-b; 1 runs held a pod back" in text
    assert "NCCLLoopbackTestBandwidth GPU-3" in text
    assert "<td>120.5<td>460" in text
    assert json.loads(as_json(found))["nodes"][0]["measured"] == 120.5


def test_a_failure_is_shown_though_its_event_is_gone() -> None:
    about = {"code": "LOW_BANDWIDTH", "gpu": "GPU-1", "pod": "ml/p"}
    ends = [{"time": f"2026-11-24T{hour}:00:00Z", **about} for hour in ("08", "10")]
    checks = [{"name": name, "failed": end} for name, end in zip("ab", ends, strict=True)]
    status = msgspec.convert({"state": "Suspect", "checks": checks}, NodeHealthStatus)
    text = page(assemble([], {"suspect": status}, SINCE))
    assert "<td>2026-11-24T10:00:00Z b LOW_BANDWIDTH GPU-1 ml/p" in text
    assert "No node is sick, 1 suspect: suspect; of what" in text


def test_what_others_wrote_is_text_on_the_page_and_nothing_else() -> None:
    text = page(assemble([event("node-a", "failed", reason="<script>x</script>")], {}, SINCE))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


def test_an_event_that_somebody_else_wrote_costs_no_more_than_its_length(timed: bool) -> None:
    forged = event("node-a", "failed")
    forged["message"] = "dcgm-diag failed X (" + " GB/s" * 80_000
    began = process_time()
    found = assemble([forged, event("node-b", "failed", measured=90.0)], {}, SINCE)
    assert [one.node for one in found.findings] == ["node-b"]
    if timed:
        assert process_time() - began < 5  # 11 s where each place begins a number


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = page(assemble([event("node-a", "failed")], HEALTH, SINCE))
    assert "http" not in text
    assert "src=" not in text


@pytest.mark.component  # asks a double over HTTP
@pytest.mark.parametrize("there", [True, False], ids=["refused", "not there"])
def test_who_cannot_read_nodehealths_has_the_report_of_events(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = [] if there else ["preflight.nvsentinel.nvidia.com/v1alpha1"]
    refused = ApiAnswer(403, {"kind": "Status", "message": "no", "code": 403})
    with ApiDouble(absent=absent) as double:
        if there:
            double.fault = lambda request: refused if "nodehealths" in request.path else None
        double.create("namespaces", {"metadata": {"name": "ml"}})
        double.create("events", event("node-a", "failed"))
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", double.url)))
        told = ended(main, "report", "--since", "9000d", "-o", "json")
    assert told.status == 0
    assert [one["node"] for one in json.loads(told.out)["findings"]] == ["node-a"]
    assert "Not read: " in told.err


@pytest.mark.parametrize("time", ["a week", "-7d", "-12h", "nand", "infd"])
def test_a_time_that_is_none_is_refused_in_a_sentence(time: str) -> None:
    sentence = f'--since: "{time}" is not a time; give one such as 7d or 12h30m.\n'
    assert ended(main, "report", f"--since={time}") == (2, "", sentence)
