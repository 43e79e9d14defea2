"""What is raised, what is cleared, and that the connector's condition logic agrees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import NODE, Action, Finding, Outcome, Subject, Verdict
from preflight_proto.check.events import EventDraft, events

subjects = st.one_of(
    st.just(NODE),
    st.builds(
        Subject, st.sampled_from(["Memory", "Pcie"]), st.sampled_from(["GPU-1", "GPU-2", "GPU-3"])
    ),
)
findings = st.builds(
    Finding,
    code=st.sampled_from(["A", "B"]),
    message=st.sampled_from(["first", "second", "first; second"]),
    fatal=st.booleans(),
    action=st.sampled_from(list(Action)),
    subject=subjects,
)


class Conditions:
    """The connector's rules: text de-duplicated exactly, split at `;`, cleared by entity, or whole
    without one.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}

    def take(self, batch: list[EventDraft]) -> None:
        for event in batch:
            entities = "".join(f"{kind}:{value} " for kind, value in event.entities)
            messages = [m for m in self.by_name.get(event.check_name, "").split(";") if m]
            if event.healthy:
                messages = [m for m in messages if entities not in m] if entities else []
            elif event.fatal:
                text = f"ErrorCode:{','.join(event.error_codes)} {entities}{event.message}"
                messages += [text] if text not in messages else []
            self.by_name[event.check_name] = ";".join(messages)

    @property
    def standing(self) -> dict[str, str]:
        return {name: text for name, text in self.by_name.items() if text}


def failed(*found: Finding) -> Verdict:
    return Verdict(Outcome.FAILED, found[0].code, "r", tuple(found))


@given(st.lists(findings, min_size=1, max_size=6))
def test_whatever_a_failing_verdict_raises_the_passing_one_clears(found: list[Finding]) -> None:
    conditions = Conditions()
    conditions.take(events("c", "Cond", "GPU", failed(*found)))
    clears = frozenset(f.subject for f in found)
    conditions.take(events("c", "Cond", "GPU", Verdict(Outcome.PASSED, "OK", "r", clears=clears)))
    assert not conditions.standing


@given(findings, st.frozensets(subjects))
def test_a_pass_about_other_gpus_leaves_a_gpus_condition_alone(
    found: Finding, clears: frozenset[Subject]
) -> None:
    conditions = Conditions()
    conditions.take(events("c", "Cond", "GPU", failed(found)))
    before = conditions.standing
    others = clears - {found.subject}
    conditions.take(events("c", "Cond", "GPU", Verdict(Outcome.PASSED, "OK", "r", clears=others)))
    if found.subject != NODE:
        assert conditions.standing == before


def test_fifty_failing_restarts_leave_one_message_and_one_pass_clears_it() -> None:
    conditions = Conditions()
    for number in range(50):
        found = Finding(
            "A",
            "m",
            fatal=True,
            action=Action.NONE,
            subject=Subject("Memory", "GPU-1"),
            metadata={"bits": str(number)},
        )
        conditions.take(events("c", "Cond", "GPU", failed(found)))
    assert conditions.standing == {"CondMemory": "ErrorCode:A GPU_UUID:GPU-1 m"}
    conditions.take(
        events(
            "c",
            "Cond",
            "GPU",
            Verdict(Outcome.PASSED, "OK", "r", clears=frozenset({Subject("Memory", "GPU-1")})),
        )
    )
    assert not conditions.standing


@given(st.lists(findings, max_size=4), st.frozensets(subjects))
def test_no_subject_is_called_sick_and_healthy_in_one_batch(
    found: list[Finding], clears: frozenset[Subject]
) -> None:
    batch = events("c", "Cond", "GPU", Verdict(Outcome.PASSED, "OK", "r", tuple(found), clears))
    sick = {e.identity for e in batch if not e.healthy}
    assert not sick & {e.identity for e in batch if e.healthy}


def test_an_inconclusive_run_sends_one_event_that_is_not_fatal_and_clears_nothing() -> None:
    [event] = events("c", "Cond", "GPU", Verdict.inconclusive("ENGINE_BUSY", "busy for 10 s"))
    assert (event.fatal, event.healthy, event.action, event.check_name, event.entities) == (
        False,
        False,
        Action.NONE,
        "Cond",
        (),
    )
    assert "10" not in event.message


def test_an_inconclusive_run_says_its_own_code_beside_what_it_has_found() -> None:
    warned = Finding("A", "m", fatal=False, action=Action.NONE, subject=Subject("Scan", "GPU-1"))
    for code, said in (("ENGINE_BUSY", ["ENGINE_BUSY", "A"]), ("A", ["A"])):
        batch = events("c", "Cond", "GPU", Verdict.inconclusive(code, "r", findings=(warned,)))
        assert [event.error_codes[0] for event in batch] == said


def test_a_skipped_or_misconfigured_run_says_nothing() -> None:
    for outcome in (Outcome.SKIPPED, Outcome.MISCONFIGURED):
        assert events("c", "Cond", "GPU", Verdict(outcome, "X", "r")) == []


def test_what_is_about_a_gpu_goes_out_as_a_gpu_whatever_the_checks_component_is() -> None:
    sick, well = Subject("Memory", "GPU-1"), Subject("Memory", "GPU-2")
    found = [
        Finding("A", "m", fatal=True, action=Action.NONE, subject=sick),
        Finding("B", "m", fatal=False, action=Action.NONE),
    ]
    batch = events(
        "c", "Cond", "Node", Verdict(Outcome.FAILED, "A", "r", tuple(found), frozenset({well}))
    )
    assert [(e.check_name, e.component, e.healthy) for e in batch] == [
        ("CondMemory", "GPU", False),
        ("Cond", "Node", False),
        ("CondMemory", "GPU", True),
    ]


@given(st.frozensets(subjects))
def test_a_healthy_event_names_one_entity_at_most(clears: frozenset[Subject]) -> None:
    # The connector of 2026 clears a message that names *all* entities of a healthy event.
    batch = events("c", "Cond", "GPU", Verdict(Outcome.PASSED, "OK", "r", clears=clears))
    assert all(len(e.entities) <= 1 for e in batch)
    assert len({e.identity for e in batch}) == len(batch) == len(clears | {NODE})
