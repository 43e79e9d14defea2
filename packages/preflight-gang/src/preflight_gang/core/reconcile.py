"""The state machine of a gang: forming → sealed(generation) → done | failed → forming again.

Pure: :func:`decide` looks at the members as they are and at the one committed record, and decides
whom to seal and what each member's answer is. There is no other state, so a new leader continues
where the old one stopped.

Generations: a sealed roster is about generation N, every answer while forming is about N+1. A check
that has joined N in an earlier life therefore ignores everything about N.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from preflight_proto.roster import Answer as Word

from preflight_gang.core.membership import CheckFailure, GangMember, MemberStage
from preflight_gang.core.snapshot import GangView, RankAssignment

PEER_FAILED: Final = "PEER_FAILED"
"""The code of a member whose answer was to fail: it passes a cause on and is not one itself."""
NAMED: Final = 8
"""How many missing members are named; a roster is an annotation of every member."""
_READY: Final = frozenset({MemberStage.CHECKING, MemberStage.WAITING})


class MemberAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One member's answer; ``rank`` where it is sealed."""

    answer: Word
    generation: int
    missing: tuple[str, ...] = ()
    reason: str = ""
    rank: int | None = None


class GangDecision(msgspec.Struct, frozen=True, kw_only=True):
    """``seal``: the members of the next generation by rank, when it can be sealed now.
    ``note_pass``: the record is to say that its generation has passed. ``answers`` by uid, for
    every live member."""

    seal: tuple[GangMember, ...] = ()
    note_pass: bool = False
    answers: dict[str, MemberAnswer] = {}


def decide(gang: GangView) -> GangDecision:
    """What is to be done about ``gang`` now; with ``seal`` most answers follow the commit."""
    alive = sorted((m for m in gang.members if m.alive), key=lambda m: m.name)
    active, failure, note_pass = _generation(gang)
    if active and not failure:
        return GangDecision(answers=_sealed(gang, alive), note_pass=note_pass)
    generation = gang.generation
    # Who runs with the others of a generation that is over ends with them, with one cause; the rest
    # form the next one.
    fail = MemberAnswer(answer="fail", generation=generation, reason=failure)
    answers = dict.fromkeys(active, fail)
    forming = [
        m
        for m in alive
        if m.uid not in active and m.stage is not MemberStage.PASSED and not _leaves(m)
    ]
    ready = [m for m in forming if _ready(gang, m)]
    wanted = gang.sized.participants
    if wanted is not None and len(ready) >= wanted and not gang.obstacle:
        return GangDecision(seal=tuple(ready[:wanted]), answers=answers)
    ending = [
        msgspec.structs.replace(m, why=f"still in its last test{_on(m)}, which is over")
        for m in alive
        if m.uid in active
    ]
    answers |= _forming(gang, forming, ending, generation + 1, failure)
    return GangDecision(answers=answers, note_pass=note_pass)


def _generation(gang: GangView) -> tuple[frozenset[str], str, bool]:
    """Who of the record is on its way to the test or in it; why the generation is over, if it is.

    And whether it is to be written down that it has passed. One member that has passed has had the
    verdict of all: nothing that happens to the others changes it, nor that its pod is deleted.
    """
    if gang.record is None:
        return frozenset(), "", False
    by_uid = {m.uid: m for m in (*gang.departed, *gang.members)}
    staying = {m.uid for m in gang.members if m.stage is MemberStage.PASSED}
    active, passed, leaving, causes = set(), gang.record.passed, False, []
    for assigned in gang.record.assignments:
        now = by_uid.get(assigned.uid)
        if now is not None and now.passed and now.attempt == assigned.attempt:
            passed = True
            leaving = leaving or now.uid not in staying
        elif (cause := _departed(assigned, now) or _unreachable(gang, assigned, now)) is not None:
            causes.append(cause)
        else:
            active.add(assigned.uid)
    if passed or not causes:
        # A later leader does not know who has left: to a member that came later, or is still to
        # read its verdict, the test would have failed.
        sealed = {assigned.uid for assigned in gang.record.assignments}
        later = any(m.alive and m.uid not in sealed for m in gang.members)
        note = (leaving and (active or later)) or (passed and causes)
        return frozenset(active), "", bool(note) and not gang.record.passed
    # Of those only who has begun the test itself takes part; the others can still get another
    # answer.
    started = frozenset(uid for uid in active if by_uid[uid].stage is MemberStage.WAITING)
    return started, min(causes)[1], False


def _departed(assigned: RankAssignment, now: GangMember | None) -> tuple[int, str] | None:
    """How grave it is (0 the most) that it takes part no longer, and why; None while it does."""
    if now is None:
        return 4, f"{assigned.name} is gone"
    if now.stage is MemberStage.FAILED and now.failure is not None:
        passed_on = now.failure.code == PEER_FAILED
        return 5 if passed_on else int(now.failure.own), _cause(now, now.failure)
    if now.stage is MemberStage.GONE:
        return 4, f"{assigned.name} is gone: {now.why}"
    if now.attempt != assigned.attempt:
        return 2, f"{assigned.name} was restarted"
    if now.ip != assigned.ip:
        return 3, f"{assigned.name} has another address"
    return None


def _unreachable(
    gang: GangView, assigned: RankAssignment, now: GangMember | None
) -> tuple[int, str] | None:
    """The same of a member that never gets its sealed roster; None when it has it, or still may."""
    assert now is not None
    assert gang.record is not None
    generation = gang.record.generation
    if now.answered("wait", generation + 1):
        return 6, f"{assigned.name} takes part in the next generation"
    if assigned.uid not in gang.refused or now.answered("sealed", generation):
        return None
    return 4, f"{assigned.name} cannot have its rank: {gang.refused[assigned.uid]}"


def _skips(member: GangMember) -> bool:
    """Tell whether its last answer is to skip."""
    return member.published is not None and member.published.answer == "skip"


def _leaves(member: GangMember) -> bool:
    """Tell whether its gang check ends without a test, whatever its next answer is."""
    return member.stage is MemberStage.WAITING and _skips(member)


def _ready(gang: GangView, one: GangMember) -> bool:
    """Whether it can be sealed: it has an address, and its pod can be written to."""
    return one.stage in _READY and one.uid not in gang.refused


def _sealed(gang: GangView, alive: Sequence[GangMember]) -> dict[str, MemberAnswer]:
    record = gang.record
    assert record is not None
    generation, everyone = record.generation, record.assignments
    reason = f"the gang was sealed with the {len(everyone)} members it needs, and this is not one of them"
    skip = MemberAnswer(answer="skip", generation=generation + 1, reason=reason)
    ranks = {assigned.uid: rank for rank, assigned in enumerate(everyone)}
    answers = {}
    for one in alive:
        rank = ranks.get(one.uid)
        if rank is not None and one.attempt == everyone[rank].attempt:
            answers[one.uid] = MemberAnswer(answer="sealed", generation=generation, rank=rank)
        elif one.stage is not MemberStage.PASSED:
            answers[one.uid] = skip
    return answers


def _forming(
    gang: GangView,
    forming: Sequence[GangMember],
    ending: Sequence[GangMember],
    generation: int,
    failure: str,
) -> dict[str, MemberAnswer]:
    """``failure``: why the last generation is over, if there is one and it did not pass;
    ``ending``: who is still in it.
    """
    wanted = gang.sized.participants
    on_their_way = [m for m in forming if m.stage is not MemberStage.FAILED]
    short = wanted is None or len(on_their_way) < wanted
    reason = gang.sized.skip
    # Who was left out of a test that failed has started without one.
    started = (
        m.stage is MemberStage.PASSED and not m.terminal and not (failure and _skips(m))
        for m in gang.members
    )
    if not reason and short and (any(started) or (not failure and _succeeded(gang, forming))):
        reason = "the other members have passed their test and have started; there is nobody to test with"
    if reason:
        skip = MemberAnswer(answer="skip", generation=generation, reason=reason)
        return {m.uid: skip for m in forming}
    failures = [m for m in gang.members if m.stage is MemberStage.FAILED]
    failed = [m for m in failures if m.failure is not None and not m.failure.own]
    over = _not_replaced(gang, len(forming) + len(ending))
    present = len(forming) + len(ending) + len(over)
    late = [*(m for m in forming if not _ready(gang, m)), *ending, *over]
    everyone = _missing(gang, late, present)  # the same for all that are not late themselves
    answers = {}
    for one in forming:
        cause = _cause_for(one, failed) if short else None
        if cause is not None:
            answers[one.uid] = MemberAnswer(answer="fail", generation=generation, reason=cause)
        else:
            missing = everyone
            if not _ready(gang, one):
                missing = _missing(gang, late, present, excluding=one.uid)
            answers[one.uid] = MemberAnswer(answer="wait", generation=generation, missing=missing)
    return answers


def _succeeded(gang: GangView, forming: Sequence[GangMember]) -> bool:
    """Tell whether others have succeeded and are over since the last generation, which passed.

    A common owner says that ``forming`` are of the same run: in another one they wait for each
    other, and where all of the generation have succeeded, it may be the run's next pods that come.
    The training operator makes none of a replica that has succeeded; an elastic job may have more.
    """
    sealed = {assigned.uid for assigned in gang.record.assignments} if gang.record else set()
    owners = {m.owner for m in forming if m.owner is not None}
    over = {m.uid for m in gang.members if m.succeeded and m.takes_part and m.owner in owners}
    once = all(owner.api_version.startswith("kubeflow.org/") for owner in owners)
    return bool(over) and (once or not sealed <= over)


def _not_replaced(gang: GangView, present: int) -> list[GangMember]:
    """The pods that failed, were evicted or refused last and are over, as many as are missing."""

    def ended(one: GangMember) -> tuple[float, str]:
        at = one.failure.at if one.failure is not None else None
        return at.timestamp() if at is not None else 0.0, one.name

    places = (gang.sized.participants or 0) - present
    gone = (m for m in gang.members if m.takes_part and m.terminal and not m.succeeded)
    over = (m for m in gone if m.stage is not MemberStage.PASSED)
    return sorted(over, key=ended)[-places:] if places > 0 else []


def _cause_for(one: GangMember, failed: Sequence[GangMember]) -> str | None:
    """The failed check of another that ``one`` need not wait for; none from before its own time."""
    for other in failed:
        if other.uid == one.uid or other.failure is None:
            continue
        if other.failure.stopped and not other.terminal:
            continue  # it is started again, or its pod is being evicted
        at = other.failure.at
        if not other.terminal or at is None or one.created is None or at >= one.created:
            return _cause(other, other.failure)
    return None


def _cause(who: GangMember, failure: CheckFailure) -> str:
    if failure.stopped:
        return f"{who.name}{_on(who)} was stopped in {failure.check}: {failure.code}"
    return f"{who.name}{_on(who)} failed {failure.check} with {failure.code}"


def _on(who: GangMember) -> str:
    return f" on {who.node}" if who.node else ""


def _missing(
    gang: GangView, late: Sequence[GangMember], present: int, excluding: str = ""
) -> tuple[str, ...]:
    """Who is missing: the ``late`` ones but the reader. Costs the same however many they are."""
    wanted = gang.sized.participants
    if gang.obstacle:
        return (gang.obstacle,)
    if wanted is None:
        return (gang.sized.unknown,)
    others = len(late) - bool(excluding)
    first = [m for m in late[: NAMED + 1] if m.uid != excluding][:NAMED]
    missing = [f"{m.name}: {gang.refused.get(m.uid, m.why)}" for m in first]
    if others > NAMED:
        missing.append(f"and {others - NAMED} more")
    if wanted > present:
        missing.append(f"{wanted - present} of {wanted} members: no such pod yet")
    return tuple(missing)
