"""Histories of sets whose names can be read two ways: made, scaled, deleted and applied anew, with
outages of the webhook, hand-overs, and domains that take half a minute to end. What a replica of
the controller knows comes from its mirror alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from cliques import BY_GROUP, DRIVER, LITERAL, ON, Object, clique, group, pcs, support
from grove_world import Cluster, Key
from hypothesis import given, settings
from hypothesis import strategies as st
from mirrored import Mirror
from preflight_mnnvl.api.names import CLAIM, PCS_NAME
from preflight_mnnvl.api.types import ComputeDomain, Part, PodClique, PodCliqueSet, PodGang
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import waiting
from preflight_mnnvl.core.reconcile import reconcile

EXAMPLES: Final = int(os.environ.get("MNNVL_HISTORIES", "40"))
ENDS_AFTER: Final = 30.0
"""Seconds that the driver's daemons take to end."""
NORMAL = {"MnnvlDomainCreated", "MnnvlDomainAdopted", "MnnvlDomainReleased"}
_TYPES: Final[dict[str, Any]] = {
    "pcs": PodCliqueSet,
    "pclq": PodClique,
    "pg": PodGang,
    "cd": ComputeDomain,
    "claim": ComputeDomain,
}


def a_set(name: str, size: int) -> Object:
    """One of the sets: `llm`, whose domains could be called like those of `llm-0-pool`; and `dis`,
    of which two scaling groups are in one PodGang.
    """
    match name:
        case "llm":
            return pcs(name, [clique("p")], [group("pool", ["p"], BY_GROUP, size)])
        case "llm-0-pool":
            return pcs(name, [clique("w"), clique("q")], annotations=ON, replicas=size)
        case _:
            groups = [group("prefill", ["a"], BY_GROUP, size), group("decode", ["b"], BY_GROUP)]
            return pcs(name, [clique("a"), clique("b")], groups)


class Replica:
    """One of the controller's: it mirrors always."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.claims: Part = "template" if config.mode == "driver" else "claim"
        self.mirror = Mirror(config, lambda _: None, clock)
        self.seen: dict[tuple[str, str], Any] = {}  # by kind and uid

    def follow(self, store: dict[str, dict[str, Object]], kinds: list[str]) -> None:
        """Take in what has changed, kind after kind."""
        for kind in kinds:
            now = {one["metadata"]["uid"]: one for one in store[kind].values()}
            for uid in [uid for of, uid in self.seen if of == kind and uid not in now]:
                self._tell(kind, uid, self.seen.pop((kind, uid)), gone=True)
            for uid, one in now.items():
                found = msgspec.json.decode(msgspec.json.encode(one), type=_TYPES[kind])
                if self.seen.get((kind, uid)) != found:
                    self.seen[kind, uid] = found
                    self._tell(kind, uid, found, gone=False)

    def _tell(self, kind: str, uid: str, found: Any, *, gone: bool) -> None:
        match kind:
            case "pclq":
                self.mirror.clique(uid, None if gone else found)
            case "pcs":
                self.mirror.set_as(found, gone=gone)
            case "pg":
                self.mirror.gang_as(found, gone=gone)
            case _:
                self.mirror.part_as("domain" if kind == "cd" else self.claims, found, gone=gone)


class History(Cluster):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.replicas = [Replica(config, lambda: self.now) for _ in range(2)]
        self.suffered = False  # an outage
        self.reasons: set[str] = set()
        self._ends: dict[str, float] = {}

    def put(self, kind: str, found: Object) -> Object:
        made = super().put(kind, found)
        made["metadata"]["creationTimestamp"] = _time(self.now)
        return made

    def collect(self) -> None:
        for name, one in self.store["cd"].items():
            if one["metadata"].get("deletionTimestamp"):
                self._ends.setdefault(one["metadata"]["uid"], self.now + ENDS_AFTER)
            del name
        held = {
            name: self.store["cd"].pop(name)
            for name, one in list(self.store["cd"].items())
            if self._ends.get(one["metadata"]["uid"], 0.0) > self.now
        }
        super().collect()
        self.store["cd"].update(held)

    def delete(self, kind: str, name: str) -> None:
        super().delete(kind, name)
        found = self.store[kind].get(name)
        if found is not None and kind == "cd":
            found["metadata"]["deletionTimestamp"] = _time(self.now)
            self._ends.setdefault(found["metadata"]["uid"], self.now + ENDS_AFTER)

    def look(self, kinds: list[str]) -> None:
        """Both replicas follow; the first one leads, and looks at all that there is."""
        for one in self.replicas:
            one.follow(self.store, kinds)
        mirror = self.replicas[0].mirror
        for key in list(mirror.every()):
            if not waiting(key)[0]:
                self._turned(key, mirror)
        self.shared()

    def _turned(self, key: Key, mirror: Mirror) -> None:
        turn = reconcile(mirror.view(key), self.config, support(self.config), self.now)
        mirror.unclaimed_since.pop(key, None)
        if turn.unclaimed_since is not None:
            mirror.unclaimed_since[key] = turn.unclaimed_since
        for action in turn.actions:
            store = self.store["cd" if action.kind == "ComputeDomain" else "claim"]
            if (action.why == "make") == (action.name in store):
                continue  # the name is taken, or it has gone: this replica is behind
            self._act(action)
        self.reasons |= {event.reason for event in turn.events}

    def shared(self) -> None:
        """No pod has the claim of another set's domain."""
        for one in self.store["pclq"].values():
            for cd in self.store["cd"].values():
                if claim_of(one) == cd["spec"]["channel"]["resourceClaimTemplate"]["name"]:
                    owner = one["metadata"]["ownerReferences"][0]["name"]
                    assert cd["metadata"]["labels"][PCS_NAME[0]] == owner

    def rest(self) -> None:
        for _ in range(12):
            for name in SETS:
                self.cliques(name)
                self.gangs(name)
            self.collect()
            self.driver()
            self.look(list(_TYPES))
            self.now += 11


SETS = ("llm", "llm-0-pool", "dis")
ORDERS = st.permutations(list(_TYPES))
STEPS = st.one_of(
    st.tuples(st.sampled_from(["apply", "delete", "grove", "outage"]), st.sampled_from(SETS)),
    st.tuples(st.just("scale"), st.sampled_from(SETS)),
    st.tuples(st.just("look"), ORDERS),
    st.tuples(st.sampled_from(["collect", "driver", "hand over", "later"]), st.none()),
)


def _time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat()


def claim_of(clique_: Object) -> str:
    claims = clique_["spec"]["podSpec"].get("resourceClaims", [])
    keys = ("resourceClaimTemplateName", "resourceClaimName")
    return next(
        (one[key] for one in claims if one["name"] == CLAIM for key in keys if key in one), ""
    )


def _steps(history: History, steps: list[tuple[str, Any]]) -> None:
    sizes = dict.fromkeys(SETS, 1)
    for what, of in steps:
        match what:
            case "scale" | "apply":
                if what == "scale":
                    sizes[of] = 3 - sizes[of]
                if what == "apply" or of in history.store["pcs"]:
                    history.apply(a_set(of, sizes[of]))
            case "delete" if of in history.store["pcs"]:
                history.delete("pcs", of)
                history.collect()  # nothing of Grove's that is new meets what is old
            case "grove" | "outage":
                history.outage = what == "outage"
                history.suffered |= history.outage
                history.cliques(of)
                history.gangs(of)
                history.outage = False
            case "look":
                history.look(of)
            case "hand over":
                history.replicas.reverse()
            case "later":
                history.now += 7
            case "collect" | "driver":
                getattr(history, what)()


@pytest.mark.timeout(180 + EXAMPLES)
@settings(max_examples=EXAMPLES)
@given(st.lists(STEPS, max_size=30), st.sampled_from([DRIVER, LITERAL]))
def test_no_foreign_domain_no_false_event_and_no_silent_absence(
    steps: list[tuple[str, Any]], config: Config
) -> None:
    history = History(config)
    _steps(history, steps)
    history.rest()
    false = history.reasons - NORMAL - ({"MnnvlClaimRestored"} if history.suffered else set())
    assert false == set()
    assert history.refused == []
    for replica in history.replicas:
        without = set()
        for one in history.store["pclq"].values():
            claim = claim_of(one)
            if not claim:
                without.add(one["metadata"]["uid"])
                continue
            domain = history.store["cd"][f"{claim.removesuffix('-mnnvl-claim')}-cd"]
            labels = history.store["claim"][claim]["metadata"]["labels"]
            if config is DRIVER:
                assert labels == {"resource.nvidia.com/computeDomain": domain["metadata"]["uid"]}
            else:
                assert labels == domain["metadata"]["labels"]
        assert {one.metadata.uid for one in replica.mirror.unclaimed()} == without
        assert replica.mirror.lost == {}
    if not history.suffered:
        assert not any(not claim_of(one) for one in history.store["pclq"].values())
