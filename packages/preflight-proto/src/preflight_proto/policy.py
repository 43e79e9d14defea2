"""PreflightConfig: what a namespace sets for itself. Whoever may writes it, the gang controller
accepts it, the webhook reads it.

Of several in a namespace at most one is in force. Which one, and whether it makes sense, is decided
by the gang controller alone, which writes it down as the condition ``Accepted``; that counts for
the generation that it names.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ._versioned import ContractError

__all__ = ["ContractError"]

GROUP: Final = "preflight.nvsentinel.nvidia.com"
VERSION: Final = "v1alpha1"
KIND: Final = "PreflightConfig"
PLURAL: Final = "preflightconfigs"
ACCEPTED: Final = "Accepted"
"""The condition's type."""

Method = Literal["auto", "workloadRef", "volcano", "coscheduling", "kai", "kueue", "labels"]
OptIn = Literal["kubeflow", "lws", "jobset", "grove", "kueueWorkload", "job"]
Enforcement = Literal["enforce", "observe"]
LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
"""An optional DNS subdomain of at most 253 characters, a slash, and a name of at most 63."""
LabelKey = Annotated[
    str,
    Meta(
        pattern=LABEL_KEY,
        max_length=317,
        description="A label's key.",
    ),
]
Scheduler = Annotated[str, Meta(min_length=1, max_length=253)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What is not set is as the cluster's configuration says."""


class GangLabelsOverride(_Part, frozen=True, kw_only=True):
    """Labels that name a pod's gang and its size."""

    gang_id_label: LabelKey | UnsetType = UNSET
    gang_size_label: LabelKey | UnsetType = UNSET


class GangDiscoveryOverride(_Part, frozen=True, kw_only=True):
    """How pods of one distributed job are recognised. A list replaces the cluster's."""

    method: (
        Annotated[
            Method, Meta(description="One source alone, or auto: all that imply co-scheduling.")
        ]
        | UnsetType
    ) = UNSET
    labels: GangLabelsOverride | UnsetType = UNSET
    opt_in: (
        Annotated[
            tuple[OptIn, ...],
            Meta(
                max_length=16,
                description="Further sources, of workloads that nothing schedules together.",
            ),
        ]
        | UnsetType
    ) = UNSET
    owner_schedulers: (
        Annotated[
            tuple[Scheduler, ...],
            Meta(
                max_length=16,
                description="Pods of these schedulers form a gang with what else their owner made.",
            ),
        ]
        | UnsetType
    ) = UNSET
    parallel_stateful_sets: (
        Annotated[bool, Meta(description="StatefulSets here start their pods side by side.")]
        | UnsetType
    ) = UNSET


class PreflightConfigSpec(_Part, frozen=True, kw_only=True):
    """What the GPU pods of this namespace get otherwise than the cluster's configuration says."""

    gang_discovery: GangDiscoveryOverride | UnsetType = UNSET
    enforcement: (
        Annotated[
            Enforcement,
            Meta(
                description="Of all checks: hold a pod back when one fails (enforce), or measure and report (observe)."
            ),
        ]
        | UnsetType
    ) = UNSET


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in Kubernetes' own objects."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    conditions: tuple[Condition, ...] = ()


class PreflightConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The object, as far as those read it who did not write it; ``spec`` is for
    :func:`decode_spec`.
    """

    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: _Status = _Status()


def path(namespace: str = "", name: str = "") -> str:
    """Of the API: all of them, those of a namespace, or one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{where}/{PLURAL}" + (f"/{name}" if name else "")


def accepted(item: PreflightConfig) -> Condition | None:
    """What the gang controller says about the object as it is now; None while it has not looked at
    it.
    """
    for condition in item.status.conditions:
        if condition.type == ACCEPTED and condition.observed_generation == item.metadata.generation:
            return condition
    return None


def refusal(item: PreflightConfig) -> str:
    """Why the object is not in force, empty where it is."""
    condition = accepted(item)
    if condition is None:
        return "the gang controller has not looked at it yet"
    return "" if condition.status == "True" else condition.message or condition.reason


def decode_spec(raw: bytes | msgspec.Raw) -> PreflightConfigSpec:
    """What is set. Raises :class:`ContractError` for what this version does not know; an unknown
    field is ignored.
    """
    try:
        return msgspec.json.decode(raw, type=PreflightConfigSpec)
    except msgspec.DecodeError as error:
        raise ContractError(f"its spec cannot be read ({error})") from error
