"""The page: one PodClique's way through admission, from the review and what is known. Pure.

review → wish → GPUs → conflicts → support → identity → domain → decision → injection → patch

Nothing is created at admission, in no mode: a dry run leaves nothing, a PodClique that is refused
later leaks nothing, and who calls the webhook need not be known. The controller makes what a stored
PodClique needs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

import msgspec
from preflight_kube.api.jsonpatch import Operation, add, pointer, remove, set_annotations

from preflight_mnnvl.api import names, types
from preflight_mnnvl.api.annotations import (
    CLASS_WITHOUT_EFFECT,
    VERSION,
    FabricRequest,
    MnnvlDecision,
    Newer,
    fabric_request,
    odd,
    pod_claim,
    read_decision,
    write_decision,
)
from preflight_mnnvl.api.identity import CliqueRefused, gang_of, identify, of_another, set_of
from preflight_mnnvl.api.types import Metadata, PodClique, PodCliqueSet, PodSpec, shown
from preflight_mnnvl.config import Config
from preflight_mnnvl.core import claims
from preflight_mnnvl.core.claims import ClaimRef
from preflight_mnnvl.core.domain import Domain, domain_of, other_identity, owned_by
from preflight_mnnvl.core.support import Support

MOST_LOOKUPS: Final = 11
"""Claims and claim templates that one review reads: with the set it is 12 requests at most."""

Result = Literal[
    "injected", "unchanged", "not-enabled", "no-gpu", "denied", "unsupported", "going", "needs"
]


class Review(NamedTuple):
    """``object`` and ``old`` are JSON; ``old`` is None at CREATE. ``now``: seconds of the epoch."""

    operation: str
    namespace: str
    object: bytes
    old: bytes | None = None
    now: float = 0.0


class ClusterView(NamedTuple):
    """``set_``: the PodCliqueSet of the labels, None where it does not exist; ``has_set``: whether
    that is known. ``classes``: what claims and templates that exist ask for; None where that is not
    known. ``taken``: by name or uid, a ComputeDomain, template or claim that may have our name.
    """

    support: Support
    set_: PodCliqueSet | None = None
    has_set: bool = False
    classes: Mapping[ClaimRef, Collection[str]] | None = None
    taken: Callable[[str], Metadata | None] = lambda _: None


class Needs(NamedTuple):
    """Lookups before the decision: a PodCliqueSet's name, claims and templates."""

    set_: str = ""
    claims: tuple[ClaimRef, ...] = ()


class ReviewAnswer(NamedTuple):
    """``message``: one sentence where it is refused."""

    result: Result
    message: str = ""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    decision: MnnvlDecision | None = None
    needs: Needs | None = None

    @property
    def allowed(self) -> bool:
        """Tell whether it is admitted; an answer that ``needs`` something is none yet."""
        refused = self.result == "unsupported" and self.message
        return self.result not in {"denied", "needs"} and not refused


def decide(
    review: Review,
    config: Config,
    known: ClusterView,
    mirrored: Callable[[str], PodCliqueSet | None] = lambda _: None,
) -> ReviewAnswer:
    """The answer; never raises. ``mirrored``: by name, sets that need no lookup."""
    if review.operation not in {"CREATE", "UPDATE"}:
        return ReviewAnswer("going")
    meta = None
    try:
        clique = types.decode(review.object, PodClique)
        meta = clique.metadata
        if meta.going:
            return ReviewAnswer("going")
        set_ = mirrored(set_of(meta))
        if set_ is not None and not known.has_set and not of_another(meta, set_.metadata):
            known = known._replace(set_=set_, has_set=True)
        if review.operation == "UPDATE":
            old = types.decode(review.old or b"{}", PodClique)
            return _Admission(meta, config, known).update(clique, old, int(review.now))
        return _Admission(meta, config, known).create(clique)
    except types.BadObject as error:
        return ReviewAnswer("denied", f"{_called(review, meta)}: {error}; correct it.")
    except (CliqueRefused, Newer) as error:
        return ReviewAnswer("denied", f"{_called(review, meta)}: {error}.")
    except _Unsupported as error:
        return ReviewAnswer("unsupported", f"{_called(review, meta)}: {error}.")


def _called(review: Review, meta: Metadata | None) -> str:
    if meta is None:
        return "PodClique"
    name = "/".join(filter(None, (shown(review.namespace), shown(meta.name or meta.generate_name))))
    return f"PodClique {name}" if name else "PodClique"


class _Unsupported(Exception):
    pass


class _Admission(NamedTuple):
    """One PodClique, the configuration, and what is known of the cluster."""

    meta: Metadata
    config: Config
    known: ClusterView

    def create(self, clique: PodClique) -> ReviewAnswer:
        """Decide what it carries for life."""
        meta, config, known = self
        owner = set_of(meta)
        if owner and not known.has_set:
            return ReviewAnswer("needs", needs=Needs(owner))
        wish = fabric_request(meta, known.set_, config.mode)
        warning = odd(wish.keys.get(names.ENABLED))
        if not wish.enabled:
            warned = (warning,) if warning else ()
            return ReviewAnswer("not-enabled", patch=self._unmarked(), warnings=warned)
        pod = types.decode_pod(clique.spec.pod_spec)
        if (answer := self._lookups(pod)) is not None:
            return answer
        classes = known.classes or {}
        of_gpus = claims.gpu_claims(pod, classes, config.gpu_device_classes)
        used = claims.places(pod, config, of_gpus)
        if not used:
            claims.refuse_unknown(pod, classes)
            own = (meta.annotations or {}).get(names.ENABLED) == "true"
            warned = (claims.without_gpus(config),) if own else ()
            return ReviewAnswer("no-gpu", patch=self._unmarked(), warnings=warned)
        claims.refuse_group(wish.group)
        if not known.support.ok:
            if config.on_unsupported == "deny":
                raise _Unsupported(known.support.why)
            without = f"{known.support.why}; its pods get no claim"
            return ReviewAnswer("unsupported", patch=self._unmarked(), warnings=(without,))
        decision = self._decision(pod, wish, of_gpus)
        patch = self._patch(pod, decision, used=used, keys=wish.keys)
        notes = known.support.warnings
        if config.mode == "driver" and names.DEVICE_CLASS in wish.keys:
            notes = (*notes, CLASS_WITHOUT_EFFECT)
        return ReviewAnswer("injected" if patch else "unchanged", "", patch, notes, decision)

    def _lookups(self, pod: PodSpec, before: PodSpec | None = None) -> ReviewAnswer | None:
        """Ask what a pod's own claims are; not of those that it had ``before``."""
        refs = {ref for entry, ref in claims.claim_refs(pod).items() if entry != names.CLAIM}
        if not refs or self.known.classes is not None:
            return None
        if before is not None:
            refs -= {*claims.claim_refs(before).values()}
        if len(refs) > MOST_LOOKUPS:
            raise CliqueRefused(
                f"its pods name {len(refs)} resource claims and templates, more than the {MOST_LOOKUPS} that are looked up; name fewer, or remove {names.ENABLED}"
            )
        return ReviewAnswer("needs", needs=Needs("", tuple(sorted(refs)))) if refs else None

    def _decision(
        self, pod: PodSpec, wish: FabricRequest, of_gpus: tuple[str, ...] = (), restored: int = 0
    ) -> MnnvlDecision:
        """Whose domain it gets, unless something stands in the way of that, or of its claim."""
        meta, config, known = self
        identity, literal = identify(meta, wish.scope), config.mode == "literal"
        domain = self._named(domain_of(identity, wish.scope))
        self._refuse_taken(domain)
        claims.refuse_class(wish.device_class, config)
        decision = MnnvlDecision(
            v=VERSION,
            mode=config.mode,
            scope=domain.scope,
            cd=domain.name,
            claim=domain.claim,
            gang=gang_of(identity, domain.scope),
            placement="any" if literal else config.placement,
            device_class=wish.device_class if literal else names.DEFAULT_DEVICE_CLASS,
            gpu_claims=of_gpus,
            restored=restored,
        )
        claims.refuse_claims(pod, pod_claim(decision), known.classes or {})
        return decision

    def _named(self, domain: Domain) -> Domain:
        """A domain that lives under its name of the release before keeps it."""
        if not domain.indexed:
            return domain  # its names were the same
        earlier = domain._replace(earlier=True)
        there = self.known.taken(earlier.name)
        mine = there is not None and not other_identity(there.labels, earlier, self.config.instance)
        return earlier if mine else domain

    def _refuse_taken(self, domain: Domain) -> None:
        claim = "ResourceClaimTemplate" if self.config.mode == "driver" else "ResourceClaim"
        for kind, name in (("ComputeDomain", domain.name), (claim, domain.claim)):
            there = self.known.taken(name)
            if there is not None and (whose := self._whose(kind, there, domain)):
                raise CliqueRefused(
                    f"the {kind} {shown(name)} exists and {whose}{owned_by(there)}; delete or rename it"
                )

    def _whose(self, kind: str, there: Metadata, domain: Domain) -> str:
        """Whose an object under our name is; empty for ours. A template has a label of the driver,
        which makes it: with a uid that is not mirrored yet it may be ours.
        """
        if kind != "ResourceClaimTemplate":
            return other_identity(there.labels, domain, self.config.instance)
        if (uid := there.label(names.TEMPLATE_OF)) is None:
            return f"does not carry the uid of the ComputeDomain {domain.name}"
        if (ours := self.known.taken(domain.name)) is not None:
            return "" if uid == ours.uid else "carries the uid of another ComputeDomain"
        other = self.known.taken(uid)
        return f"is of the ComputeDomain {shown(other.name)}" if other is not None else ""

    def update(self, clique: PodClique, stored: PodClique, now: int) -> ReviewAnswer:
        """Repeat what the stored object carries, and look up no claims but new ones, which may be
        those that give GPUs now.
        """
        meta, config, known = self
        old = stored.metadata
        decision = read_decision(old.annotation(names.DECISION))
        if decision is None:
            return self._undecided(clique, now)
        pod = types.decode_pod(clique.spec.pod_spec)
        own = meta.annotation(names.GROVE_MNNVL_GROUP)
        claims.refuse_group(None if own in {None, "none"} else (str(own), "the PodClique"))
        classes = known.classes or {}
        claims.refuse_claims(pod, pod_claim(decision), classes)
        before = types.decode_pod(stored.spec.pod_spec) if pod.resource_claims else PodSpec()
        if (answer := self._lookups(pod, before)) is not None:
            return answer
        of_gpus = claims.updated_gpu_claims(
            pod, before, decision.gpu_claims, classes, config.gpu_device_classes
        )
        decision = msgspec.structs.replace(decision, gpu_claims=of_gpus)
        used = claims.places(pod, config, of_gpus)
        if not used:
            claims.refuse_unknown(pod, {*claims.claim_refs(before).values(), *classes})
        keys = {key: value for key in names.KEYS if (value := old.annotation(key)) is not None}
        without = [key for key in names.KEYS if key not in keys]
        patch = self._patch(pod, decision, used=used, keys=keys, without=without)
        return ReviewAnswer("injected" if patch else "unchanged", "", patch, (), decision)

    def _undecided(self, clique: PodClique, now: int) -> ReviewAnswer:
        """Leave what has no decision without, unless its living domain proves that it had one."""
        (meta, config, known), warned = self, tuple[str, ...]()
        wish = fabric_request(meta, known.set_, config.mode)
        # Where none can be had, one that is made anew has none either.
        if wish.enabled and known.support.state not in {"unsupported", "off"}:
            # Nothing is refused that was stored before.
            with suppress(types.BadObject, CliqueRefused):
                pod = types.decode_pod(clique.spec.pod_spec)
                if used := claims.places(pod, config, ()):
                    # Some of its pods would join a domain, and those that run would not.
                    late = "asks for multi-node NVLink, and its pods get no claim; delete it, and Grove makes it anew with one"
                    warned = (f"PodClique {shown(meta.name)} {late}",)
                if (answer := self._restored(pod, wish, used, now)) is not None:
                    return answer
        return ReviewAnswer("not-enabled", patch=self._unmarked(), warnings=warned)

    def _restored(
        self, pod: PodSpec, wish: FabricRequest, used: list[types.ContainerPlace], now: int
    ) -> ReviewAnswer | None:
        """Grove writes a decision away where no webhook answers; the domain is its second copy."""
        meta, _, known = self
        if known.set_ is None or wish.group is not None or not known.support.ok:
            return None
        decision = self._decision(pod, wish, restored=now)
        there = known.taken(decision.cd)
        if not used or there is None or there.going:
            return None
        patch = self._patch(pod, decision, used=used, keys=wish.keys)
        warning = f"PodClique {shown(meta.name)} had lost its claim, and has it again, as its domain {shown(decision.cd)} lives; restart those of its pods that were made without it"
        return ReviewAnswer("injected", "", patch, (warning,), decision)

    def _patch(
        self,
        pod: PodSpec,
        decision: MnnvlDecision,
        *,
        used: list[types.ContainerPlace],
        keys: Mapping[str, str],
        without: Collection[str] = (),
    ) -> tuple[Operation, ...]:
        operations = inject(pod, pod_claim(decision), used, fabric=decision.placement == "fabric")
        wanted = {**keys, names.DECISION: write_decision(decision)}
        return (*operations, *annotate(self.meta.annotations, wanted, without))

    def _unmarked(self) -> tuple[Operation, ...]:
        """A decision that a template brought along must go: the controller would follow it."""
        return tuple(annotate(self.meta.annotations, {}, (names.DECISION,)))


# --- the claim in a pod's template, as a JSONPatch on what is there; a second one is empty

_ROOT = "/spec/podSpec"
_FABRIC = (
    {"key": names.FABRIC_LABEL, "operator": "Exists"},
    # Feature discovery writes an empty label on a node that is in no clique.
    {"key": names.FABRIC_LABEL, "operator": "NotIn", "values": [""]},
)


def inject(
    pod: PodSpec, entry: Mapping[str, str], gpus: Sequence[types.ContainerPlace], *, fabric: bool
) -> list[Operation]:
    """Our claim in the pod and in the containers ``gpus``; ``fabric``: on nodes of a fabric."""
    patch = _claims(f"{_ROOT}/resourceClaims", pod.resource_claims, [dict(entry)] if gpus else [])
    uses = {(place.list, place.position) for place in gpus}
    for where, i, container in pod.everyone():
        patch += _use(f"{_ROOT}/{where}/{i}/resources", container, uses=(where, i) in uses)
    return patch + _affinity(pod.affinity) if fabric and gpus else patch


def annotate(
    annotations: Mapping[str, str] | None, wanted: Mapping[str, str], without: Collection[str] = ()
) -> list[Operation]:
    """The annotations ``wanted`` on an object that has ``annotations``, and none of ``without``."""
    if annotations is None:
        return [add("/metadata/annotations", dict(wanted))] if wanted else []
    gone = [key for key in sorted(without) if key in annotations and key not in wanted]
    changed = {key: value for key, value in wanted.items() if annotations.get(key) != value}
    patch = [remove(pointer("metadata", "annotations", key)) for key in gone]
    return patch + set_annotations(changed, annotated=True)


def _use(path: str, container: types.Container, *, uses: bool) -> list[Operation]:
    ours = [{"name": names.CLAIM}] if uses else []
    if container.resources is None:
        return [add(path, {"claims": ours})] if ours else []
    return _claims(f"{path}/claims", container.resources.claims, ours)


def _claims(
    path: str, claims: Sequence[Mapping[str, Any]] | None, ours: list[dict[str, str]]
) -> list[Operation]:
    wanted = [*(claim for claim in claims or () if claim.get("name") != names.CLAIM), *ours]
    if wanted == [*(claims or ())]:
        return []
    return [add(path, wanted) if wanted else remove(path)]


def _affinity(affinity: dict[str, Any] | None) -> list[Operation]:
    """A node of a fabric is required by every term, but for those that match no node at all."""
    wanted = copy.deepcopy(affinity or {})
    place = wanted
    for key in ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        if not isinstance(place.get(key), dict):
            place[key] = {}
        place = place[key]
    if not isinstance(terms := place.get("nodeSelectorTerms"), list):
        place["nodeSelectorTerms"] = [{"matchExpressions": [*_FABRIC]}]
        terms = []
    for term in terms:
        if isinstance(term, dict) and (term.get("matchExpressions") or term.get("matchFields")):
            expressions = term.get("matchExpressions") or []
            if isinstance(expressions, list):
                lacking = [each for each in _FABRIC if each not in expressions]
                term["matchExpressions"] = [*expressions, *lacking]
    return [] if wanted == affinity else [add(f"{_ROOT}/affinity", wanted)]
