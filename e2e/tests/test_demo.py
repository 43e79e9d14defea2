"""The demo's story of a run, and how it is told: in lines, in a table, on a page."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.demo.circle import CircleStep, CircleStory
from preflight_e2e.demo.page import page
from preflight_e2e.demo.picture import made_of, read_stamp, sources
from preflight_e2e.demo.run import SCENARIO
from preflight_e2e.demo.show import final
from preflight_e2e.demo.story import DemoStory, answer, changes, tell
from preflight_testing.matrix.facts import uuids
from preflight_testing.matrix.scenario import load
from rich.console import Console

CIRCLE = CircleStory("node-a", [CircleStep(4.2, "labeler", "node-a <is> marked")])
GPUS = uuids("node-c")
SICK = GPUS[3]


def state(name: str, node: str, phase: str, **checks: Any) -> dict[str, Any]:
    """A pod as the API server has it; each check is None (waits), "running" or its result."""
    statuses = []
    for check, found in checks.items():
        how: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
        if found == "running":
            how = {"running": {}}
        elif found is not None:
            how = {
                "terminated": {
                    "exitCode": 0 if found["outcome"] == "passed" else 1,
                    "message": json.dumps(found),
                }
            }
        statuses.append({"name": f"preflight-{check.replace('_', '-')}", "state": how})
    meta = {"name": name, "labels": {"app.kubernetes.io/gang-id": "gang"}}
    return {
        "metadata": meta,
        "spec": {"nodeName": node},
        "status": {"phase": phase, "initContainerStatuses": statuses},
    }


PASSED = {"outcome": "passed", "code": "OK", "reason": "fast", "measured": 465.0, "expected": 466.0}
FAILED = {"outcome": "failed", "code": "BAD", "reason": "memory <b>is</b> bad", "subject": SICK}
EVENT: dict[str, Any] = {
    "checkName": "Memory",
    "isFatal": True,
    "isHealthy": False,
    "recommendedAction": "CONTACT_SUPPORT",
    "errorCode": ["BAD"],
    "message": "<script>alert(1)</script>",
    "entitiesImpacted": [{"entityType": "GPU_UUID", "entityValue": SICK}],
    "metadata": {
        "pod": "sick",
        "pairs_gbps": f"{GPUS[0]}+{GPUS[1]}=370.1 {GPUS[2]}+{GPUS[1]}=117.0",
    },
}
OTHER = EVENT | {"metadata": {"pod": "another"}}


@pytest.fixture
def story() -> DemoStory:
    history = [
        (100.0, state("well", "node-a", "Pending", nccl_loopback="running")),
        (101.0, state("sick", "node-c", "Pending", dcgm_diag="running", nccl_loopback=None)),
        (102.5, state("well", "node-a", "Running", nccl_loopback=PASSED)),
        (103.0, state("sick", "node-c", "Failed", dcgm_diag=FAILED, nccl_loopback=None)),
    ]
    logs: dict[str, list[dict[str, Any]]] = {
        "node-c": [{"batch": 2}, {"event": EVENT}, {"event": OTHER}]
    }
    return tell(
        history, logs, lambda pod, container: "1G: held to at least 400 GB/s (expected 466)", []
    )


def test_a_story_has_each_checks_times_result_and_floor(story: DemoStory) -> None:
    [check] = story.pods[0].checks
    assert (check.began, check.ended, check.outcome) == (0.0, 2.5, "passed")
    assert (check.measured, check.floor, check.expected) == (465.0, 400.0, 466.0)
    assert story.pods[0].starts_at == 2.5


def test_a_check_that_was_not_reached_has_no_times(story: DemoStory) -> None:
    last = story.pods[1].checks[1]
    assert (last.outcome, last.began, last.ended) == ("not run", None, None)


def test_a_pod_is_held_back_by_its_first_check_that_did_not_pass(story: DemoStory) -> None:
    assert story.pods[1].stopped_by is story.pods[1].checks[0]
    assert story.pods[0].stopped_by is None


def test_a_pod_has_the_events_that_name_it_and_no_others(story: DemoStory) -> None:
    assert story.pods[1].unhealthy == [EVENT]


def test_the_end_of_a_check_is_one_line_with_its_code() -> None:
    before, now = (
        state("p", "n", "Pending", dcgm_diag="running"),
        state("p", "n", "Failed", dcgm_diag=FAILED),
    )
    assert list(changes(before, now)) == ["dcgm-diag failed BAD", "held back"]


def test_a_state_that_changes_nothing_a_person_cares_for_is_silent() -> None:
    now = state("p", "n", "Pending", dcgm_diag="running")
    assert not list(changes(now, now | {"metadata": {"name": "p", "annotations": {"a": "b"}}}))


def test_the_table_names_the_gpu_by_index_and_uuid(story: DemoStory) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(final(story))
    text = captured.get()
    assert re.search(r"^well +node-a .*passed 465 GB/s .*runs", text, re.MULTILINE)
    assert f"GPU 3 ({SICK}) of node-c" in text
    assert "Memory, fatal, CONTACT_SUPPORT, BAD" in text


SLOW = {"outcome": "failed", "code": "LOW_BANDWIDTH", "reason": "slow-1 is slow"}
OWN = EVENT | {
    "checkName": "Fabric",
    "errorCode": ["NODE_SLOW"],
    "message": "slow",
    "entitiesImpacted": [],
}
LOG = "leader: edges| percent of normal:\nleader: edges| 1 node-b 26/27\nfailed"


@pytest.fixture
def slow() -> DemoStory:
    """A gang whose second node is at fault itself."""
    history = [
        (1.0, state(f"slow-{i}", f"node-{n}", "Failed", nccl_allreduce=SLOW))
        for i, n in enumerate("ab")
    ]
    events: dict[str, list[dict[str, Any]]] = {
        "node-a": [{"event": OWN | {"isFatal": False, "metadata": {"pod": "slow-0"}}}],
        "node-b": [{"event": OWN | {"metadata": {"pod": "slow-1"}}}],
    }
    return tell(history, events, lambda pod, _: LOG if pod == "slow-0" else "", [])


def test_a_node_at_fault_is_named_and_its_neighbour_is_not_to_blame(slow: DemoStory) -> None:
    told = page(slow, CIRCLE, load(SCENARIO)[0], 1.0)
    blamed = re.findall(r"<dt>on</dt><dd>(.*?)</dd>", told)
    assert blamed == ["nobody: this node is not to blame", "node-b"]


def test_the_page_begins_with_the_sick_parts_and_marks_who_is_blamed(
    story: DemoStory, slow: DemoStory
) -> None:
    assert answer(story) == ("1 sick part found", "GPU 3 of node-c")
    assert answer(slow) == ("1 sick part found", "node-b")
    head = page(slow, CIRCLE, load(SCENARIO)[0], 1.0)
    assert "<h1>1 sick part found: <em>node-b</em></h1>" in head
    assert re.findall('<tr class="(.*?)">', head)[:3] == ["gang", "innocent", "why"]
    assert head.count('<mark class="blamed">') == 1


def test_a_node_that_is_named_only_counts_as_sick_and_not_as_blamed(slow: DemoStory) -> None:
    message = "it could not be cleared: this node is named and not blamed"
    slow.pods[1].events = [OWN | {"isFatal": False, "message": message}]
    assert answer(slow) == ("1 sick part found", "node-b's network (named, not blamed)")
    assert [pod.standing for pod in slow.pods] == ["innocent", "suspected"]
    slow.pods[1].events = []
    assert answer(slow) == ("No sick part found", "")


def test_the_paths_that_were_measured_are_shown_once(slow: DemoStory) -> None:
    assert [pod.edges for pod in slow.pods] == [["percent of normal:", "1 node-b 26/27"], []]
    assert page(slow, CIRCLE, load(SCENARIO)[0], 1.0).count("<pre>1 node-b 26/27</pre>") == 1


class Page(html.parser.HTMLParser):
    """Which tags are open at the end, and what the page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def report(story: DemoStory) -> str:
    return page(story, CIRCLE, load(SCENARIO)[0], 12.3)


def test_the_page_is_whole_and_needs_nothing_else(report: str) -> None:
    parsed = Page(report)
    assert (parsed.open, parsed.loads) == ([], [])
    assert "@import" not in report
    assert "url(" not in report


def test_what_checks_say_stays_text_on_the_page(report: str) -> None:
    assert "script" not in Page(report).tags
    assert "memory &lt;b&gt;is&lt;/b&gt; bad" in report


def test_the_page_shows_bandwidths_against_their_floor_and_the_pairs_of_a_slow_node(
    report: str,
) -> None:
    assert 'title="floor 400 GB/s"' in report
    assert "GPU 1 and 2: 117 GB/s" in report


def test_the_circle_is_told_step_by_step_on_the_page_and_so_is_why_it_did_not_close(
    story: DemoStory,
) -> None:
    told = page(story, replace(CIRCLE, problem="the circle: no label"), load(SCENARIO)[0], 1.0)
    assert "4.2 s</b><span><small>labeler</small>node-a &lt;is&gt; marked" in told
    assert "the circle: no label" in told


def test_differences_are_told_on_the_page(story: DemoStory) -> None:
    differs = DemoStory(
        story.pods, story.seconds, as_expected=False, problems=["sick: saw this, expected that"]
    )
    assert "sick: saw this, expected that" in page(differs, CIRCLE, load(SCENARIO)[0], 1.0)


def test_the_demo_expects_something_of_every_check_of_every_pod() -> None:
    [scenario] = load(SCENARIO)
    checks = [check["name"] for check in scenario.values["checks"]]
    assert all(
        [c.check for c in pod.checks] == checks for step in scenario.steps for pod in step.pods
    )


PICTURE = Path(__file__).resolve().parents[2] / "docs/demo-report.png"


def test_the_picture_of_the_readme_is_of_todays_page() -> None:
    stamp = read_stamp(PICTURE.read_bytes())
    assert stamp == sources(), "make it anew: nox -s demo -- --picture docs/demo-report.png"


def test_a_stamp_is_read_from_the_picture_that_bears_it() -> None:
    empty = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0IEND\xaeB`\x82"
    assert read_stamp(empty) == ""
    assert read_stamp(made_of(empty, "a" * 64)) == "a" * 64
