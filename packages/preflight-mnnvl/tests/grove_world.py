"""A cluster in memory: an API server with admission, Grove, the driver's controller, and the
garbage collector, each one step at a time.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from cliques import Object, decoded_set, support
from preflight_mnnvl.api.types import ComputeDomain, Metadata, PodClique, PodCliqueSet, PodGang
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.mutate_podclique import ClusterView, Review, decide
from preflight_mnnvl.core.reconcile import ClusterWrite, DomainPlan, announced, plans, reconcile
from preflight_mnnvl.core.snapshot import World, view_of
from preflight_mnnvl.core.validate_podcliqueset import review
from preflight_testing import grove
from preflight_testing.apidouble.patches import DoesNotApply, json_patch

Key = tuple[str, str]
NOW = 1_800_000_000.0
AT = "2027-01-15T08:00:00Z"  # the same moment


class Died(Exception):
    """The controller ended before this write."""


class Cluster:
    def __init__(self, config: Config, *, labels: Any = "grove") -> None:
        self.config, self.labels = config, labels
        self.store: dict[str, dict[str, Object]] = {
            kind: {} for kind in ("pcs", "pclq", "pg", "cd", "claim")
        }
        self.now = NOW
        self.writes: list[str] = []  # the controller's
        self.refused: list[str] = []
        self.told: dict[str, str] = {}
        self.messages: list[str] = []
        self.unclaimed: dict[Key, float] = {}
        self.lost: dict[Key, str] = {}
        self.dies_before: int | None = None
        self.outage = False  # no webhook answers, and what it would refuse passes
        self.behind = False  # the webhook does not see what has which name
        self._count = 0

    # --- the API server ---

    def _stamp(self) -> str:
        self._count += 1
        return str(self._count)

    def put(self, kind: str, found: Object) -> Object:
        meta = found["metadata"]
        assert meta["name"] not in self.store[kind], "AlreadyExists"
        for owner in meta.get("ownerReferences", ()):
            assert owner["uid"], "an owner reference without uid is refused"
        stamp = self._stamp()
        meta.update(
            uid=f"{kind}-{stamp}", resourceVersion=stamp, creationTimestamp=AT, namespace="default"
        )
        if kind == "cd":
            meta["finalizers"] = ["resource.nvidia.com/computeDomain"]
        self.store[kind][meta["name"]] = found
        return found

    def change(self, kind: str, name: str, wanted: Object) -> bool:
        """An update; one that changes nothing is not stored."""
        if wanted == self.store[kind][name]:
            return False
        wanted["metadata"]["resourceVersion"] = self._stamp()
        self.store[kind][name] = wanted
        return True

    def delete(self, kind: str, name: str) -> None:
        found = self.store[kind][name]
        if kind != "pclq" and found["metadata"].get("finalizers"):  # Grove takes its own away
            found["metadata"].setdefault("deletionTimestamp", AT)
        else:
            del self.store[kind][name]

    def collect(self) -> None:
        """The garbage collector, until it has nothing to do; and the driver, which ends what is
        being deleted.
        """
        while True:
            living = {
                one["metadata"]["uid"] for kind in self.store.values() for one in kind.values()
            }
            gone = [
                (kind, name)
                for kind, found in self.store.items()
                for name, one in found.items()
                if (owners := one["metadata"].get("ownerReferences"))
                and not any(o["uid"] in living for o in owners)
            ]
            for kind, name in gone:
                self.delete(kind, name)
            ended = [
                name
                for name, one in self.store["cd"].items()
                if "deletionTimestamp" in one["metadata"]
            ]
            for name in ended:
                uid = self.store["cd"].pop(name)["metadata"]["uid"]
                self.lost["default", name] = uid
                for claim, one in list(self.store["claim"].items()):
                    if (
                        one["metadata"].get("labels", {}).get("resource.nvidia.com/computeDomain")
                        == uid
                    ):
                        del self.store["claim"][claim]
            if not gone and not ended:
                return

    def driver(self) -> None:
        """NVIDIA's controller: a claim template for each ComputeDomain."""
        for cd in list(self.store["cd"].values()):
            channel = cd["spec"].get("channel")
            if (
                channel
                and self.config.mode == "driver"
                and "deletionTimestamp" not in cd["metadata"]
            ):
                name = channel["resourceClaimTemplate"]["name"]
                if name not in self.store["claim"]:
                    labels = {"resource.nvidia.com/computeDomain": cd["metadata"]["uid"]}
                    self.put("claim", {"metadata": {"name": name, "labels": labels}})

    # --- Grove ---

    def apply(self, found: Object) -> None:
        name = found["metadata"]["name"]
        old = self.store["pcs"].get(name)
        answer = review(
            "UPDATE" if old else "CREATE",
            _json(found),
            _json(old) if old else None,
            self.config,
            support(self.config),
        )
        assert answer.allowed, answer.message
        if old is None:
            self.put("pcs", copy.deepcopy(found))
        else:
            wanted = copy.deepcopy(found)
            wanted["metadata"] = {
                **old["metadata"],
                **{k: v for k, v in found["metadata"].items() if k != "uid"},
            }
            self.change("pcs", name, wanted)

    def made(self, name: str) -> list[Object]:
        """The PodCliques of a set, as Grove writes them: the template again, each time."""
        set_ = self.store["pcs"][name]
        return [grove.podclique(set_, one, "default", self.labels) for one in grove.made(set_, {})]

    def cliques(self, name: str) -> int:
        """One reconciliation of the set's PodCliques; how many writes were stored."""
        stored = 0
        wanted = (
            {one["metadata"]["name"]: one for one in self.made(name)}
            if name in self.store["pcs"]
            else {}
        )
        for existing in [
            n for n, one in self.store["pclq"].items() if _owner(one) == name and n not in wanted
        ]:
            self.delete("pclq", existing)
        for key, one in wanted.items():
            old = self.store["pclq"].get(key)
            if old is None:
                if (ready := self._admitted("CREATE", one, None)) is not None:
                    self.put("pclq", ready)
                    stored += 1
                continue
            labels = one["metadata"]["labels"]
            if "grove.io/podcliquescalinggroup" in labels:
                if old["metadata"]["labels"][grove.HASH] != labels[grove.HASH]:
                    self.delete("pclq", key)  # and the next turn makes it anew
                continue
            one["metadata"] = {**old["metadata"], **one["metadata"]}
            if "annotations" not in self._template_meta(name, key):
                one["metadata"].pop("annotations", None)
            one["spec"]["replicas"] = old["spec"]["replicas"]
            if (ready := self._admitted("UPDATE", one, old)) is not None:
                stored += self.change("pclq", key, ready)
        return stored

    def _template_meta(self, name: str, key: str) -> Object:
        return next(one["metadata"] for one in self.made(name) if one["metadata"]["name"] == key)

    def _admitted(self, operation: str, found: Object, old: Object | None) -> Object | None:
        set_ = self.store["pcs"].get(_owner(found))
        if self.outage:
            return found
        there = {} if self.behind else {**self.store["cd"], **self.store["claim"]}
        known = ClusterView(
            support(self.config),
            decoded_set(set_) if set_ else None,
            has_set=True,
            classes={},
            taken={name: _meta(one) for name, one in there.items()}.get,
        )
        answer = decide(
            Review(
                operation,
                "default",
                _json(found),
                _json(old) if old else None,
                now=self.now,
            ),
            self.config,
            known,
        )
        if not answer.allowed:
            self.refused.append(answer.message)
            return None
        stored: Object = json_patch(found, list(answer.patch))
        return stored

    def gangs(self, name: str) -> None:
        """One reconciliation of the set's PodGangs."""
        wanted = (
            {one["metadata"]["labels"]["grove.io/podgang"] for one in self.made(name)}
            if name in self.store["pcs"]
            else set()
        )
        for existing in [
            n for n, one in self.store["pg"].items() if _owner(one) == name and n not in wanted
        ]:
            self.delete("pg", existing)
        for gang in sorted(wanted - self.store["pg"].keys()):
            owner = {
                "kind": "PodCliqueSet",
                "name": name,
                "uid": self.store["pcs"][name]["metadata"]["uid"],
            }
            self.put("pg", {"metadata": {"name": gang, "ownerReferences": [owner]}})

    # --- the controller ---

    def world(self) -> World:
        def all_of(kind: str, type_: Any) -> dict[Key, Any]:
            return {
                ("default", name): msgspec.json.decode(_json(one), type=type_)
                for name, one in self.store[kind].items()
            }

        return World(
            cliques=all_of("pclq", PodClique),
            sets=all_of("pcs", PodCliqueSet),
            gangs=all_of("pg", PodGang),
            domains=all_of("cd", ComputeDomain),
            claims=all_of("claim", ComputeDomain),
        )

    def planned(self) -> dict[Key, DomainPlan]:
        """The plan for each domain, with what earlier turns have left."""
        world, supported = self.world(), support(self.config)
        wants = world.wanted()
        return {
            key: reconcile(
                view_of(world, key, wants.get(key), self.config.mode)._replace(
                    lost=self.lost.get(key, ""), unclaimed_since=self.unclaimed.get(key)
                ),
                self.config,
                supported,
                self.now,
            )
            for key in plans(world, self.config, supported, self.now)
        }

    def turn(self) -> dict[Key, DomainPlan]:
        """One turn of the controller about every domain, with its writes. Raises :class:`Died`."""
        world = self.world()
        found = self.planned()
        self.unclaimed = {}
        for key, one in found.items():
            if one.unclaimed_since is not None:
                self.unclaimed[key] = one.unclaimed_since
            for action in one.actions:
                self._act(action)
            for event in one.events:
                self.told.setdefault(f"{event.regarding} {event.about}", event.reason)
                self.messages.append(event.message)
        for (_, name), patch in announcements(world).items():
            self._alive(f"announce {name}")
            gang = copy.deepcopy(self.store["pg"][name])
            annotations = {
                **gang["metadata"].get("annotations", {}),
                **patch["metadata"]["annotations"],
            }
            gang["metadata"]["annotations"] = {
                k: v for k, v in annotations.items() if v is not None
            }
            self.change("pg", name, gang)
        return found

    def _act(self, action: ClusterWrite) -> None:
        kind = "cd" if action.kind == "ComputeDomain" else "claim"
        self._alive(f"{action.why} {action.name}")
        if action.why == "make":
            self.put(kind, copy.deepcopy(action.body))
            return
        try:
            self.change(kind, action.name, json_patch(self.store[kind][action.name], action.body))
        except DoesNotApply:
            self.writes.pop()

    def _alive(self, what: str) -> None:
        if self.dies_before is not None:
            if self.dies_before == 0:
                self.restart()
                raise Died(what)
            self.dies_before -= 1
        self.writes.append(what)

    def restart(self) -> None:
        """The next leader remembers nothing."""
        self.dies_before = None
        self.unclaimed, self.lost = {}, {}

    def settle(self) -> None:
        """Everybody has a turn until nothing changes, and time passes."""
        for _ in range(50):
            before = json.dumps(self.store, sort_keys=True)
            self.collect()
            self.driver()
            self.turn()
            self.collect()
            self.now += 3
            if json.dumps(self.store, sort_keys=True) == before and not self.unclaimed:
                return
        raise AssertionError("the cluster does not come to rest")

    def grove(self, name: str) -> None:
        """Grove and everybody else, until nothing changes."""
        self.cliques(name)
        self.gangs(name)
        self.collect()
        self.settle()

    def domains(self) -> dict[str, str]:
        """The ComputeDomains, and the kind and name of the owner of each."""
        found = {}
        for name, one in sorted(self.store["cd"].items()):
            (owner,) = one["metadata"]["ownerReferences"]
            found[name] = f"{owner['kind']} {owner['name']}"
        return found


def announcements(world: World) -> dict[Key, dict[str, Any]]:
    """The merge patch of each PodGang that gets one."""
    wants = world.wanted()
    patches = {key: announced(gang.metadata, wants, world) for key, gang in world.gangs.items()}
    return {key: patch for key, patch in sorted(patches.items()) if patch}


def _owner(found: Object) -> str:
    return str(found["metadata"]["ownerReferences"][0]["name"])


def _meta(found: Object) -> Metadata:
    return msgspec.json.decode(_json(found["metadata"]), type=Metadata)


def _json(found: Object) -> bytes:
    return json.dumps(found).encode()
