"""PodCliques that ask for the fabric, and whose pods do not get the claim: written while no webhook
answered, or older than the wish. Pure.

The wish is resolved from set, scaling group and clique, as at admission.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from preflight_mnnvl.api.annotations import Newer, pod_claim, read_decision, wish_of
from preflight_mnnvl.api.identity import CliqueRefused, of_another, set_of
from preflight_mnnvl.api.names import DECISION, GROVE_MNNVL_GROUP, KEYS, PCS_NAME, PCSG_NAME
from preflight_mnnvl.api.types import BadObject, Key, Metadata, PodClique, PodCliqueSet, decode_pod
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import places

__all__ = ["CliqueAudit", "Unclaimed", "lacks_claim"]

_LABELS: Final = (*PCS_NAME, *PCSG_NAME)
_ANNOTATIONS: Final = (*KEYS, DECISION, GROVE_MNNVL_GROUP)


class Unclaimed(NamedTuple):
    """``since``: by the clock of the audit. ``set_``: what it belongs to, where that is there."""

    meta: Metadata
    since: float
    set_: Metadata | None


class CliqueAudit:
    """``found``: by uid, those of now. ``touch`` is called with the namespace and uid of each that
    comes or goes.
    """

    def __init__(
        self, config: Config, touch: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        self._config, self._touch, self._clock = config, touch, clock
        self.found: dict[str, Unclaimed] = {}
        self._lacking: dict[str, tuple[Key, Metadata]] = {}
        self._of: dict[Key, set[str]] = {}

    def clique(self, uid: str, clique: PodClique | None, sets: dict[Key, PodCliqueSet]) -> None:
        """A PodClique as it is now; None where it has gone."""
        key, _ = self._lacking.pop(uid, (("", ""), None))
        if key in self._of:
            self._of[key].discard(uid)
            if not self._of[key]:
                del self._of[key]
        if clique is not None and lacks_claim(clique, self._config):
            meta = clique.metadata
            key = (meta.namespace, set_of(meta))
            self._lacking[uid] = key, meta.only(_LABELS, _ANNOTATIONS)
            self._of.setdefault(key, set()).add(uid)
        self._judge(uid, sets)

    def set_(self, key: Key, sets: dict[Key, PodCliqueSet]) -> None:
        """A PodCliqueSet that has come, changed or gone."""
        for uid in self._of.get(key, ()):
            self._judge(uid, sets)

    def _judge(self, uid: str, sets: dict[Key, PodCliqueSet]) -> None:
        key, meta = self._lacking.get(uid, (("", ""), None))
        set_ = sets.get(key)
        if meta is None or not _asks(meta, set_, self._config):
            if (before := self.found.pop(uid, None)) is not None:
                self._touch(before.meta.namespace, uid)
        elif uid not in self.found:
            self.found[uid] = Unclaimed(meta, self._clock(), set_.metadata if set_ else None)
            self._touch(meta.namespace, uid)


def lacks_claim(clique: PodClique, config: Config) -> bool:
    """Whether its pods have GPUs and no decision, or a decision and not its claim."""
    meta = clique.metadata
    if meta.going:
        return False
    try:
        made = read_decision(meta.annotation(DECISION))
        pod = decode_pod(clique.spec.pod_spec)
        if made is not None:
            return pod_claim(made) not in (pod.resource_claims or [])
        return bool(places(pod, config.gpu_resources, ()))
    except (BadObject, CliqueRefused, Newer):
        return meta.annotation(DECISION) is not None


def _asks(meta: Metadata, set_: PodCliqueSet | None, config: Config) -> bool:
    if meta.annotation(DECISION) is not None:
        return True
    if set_ is not None and (set_.metadata.going or of_another(meta, set_.metadata)):
        return False
    wish = wish_of(meta, set_, config.mode)
    return wish.enabled and wish.group is None
