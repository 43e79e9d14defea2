"""What the webhook saw of a pod's resource claims at admission, for the gang controller's audit to
compare with what the pod got.

It travels as the annotation ``preflight.nvsentinel.nvidia.com/claims`` of every pod with resource
claims that was admitted where device classes are configured, checked or not. A claim is looked at
again when the pod is scheduled, so one that was deleted and made again meanwhile, or a template
that was, gives the pod other devices than those that were decided about.

Example:
``{"v":1,"claims":{"gpus":{"kind":"ResourceClaim","name":"training-gpus","uid":"8f0c…","gpu":true}}}``
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from ._versioned import ContractError, decode

__all__ = ["ContractError"]

VERSION: Final = 1
_MOST: Final = 1024


class SeenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``spec.resourceClaims``. ``name`` and ``uid`` are those of the claim, or of the
    template that one is made of; ``uid`` is empty where there was neither. ``gpu``: whether it was
    taken to be for GPUs."""

    kind: Literal["ResourceClaim", "ResourceClaimTemplate", ""]
    name: str
    uid: str
    gpu: bool


class Admitted(msgspec.Struct, frozen=True, kw_only=True):
    """``claims``: by their names in the pod."""

    v: int
    claims: Annotated[dict[str, SeenClaim], msgspec.Meta(max_length=_MOST)]


def encode_admitted(admitted: Admitted) -> str:
    """The annotation's value."""
    return msgspec.json.encode(admitted).decode()


def decode_admitted(data: bytes | str) -> Admitted:
    """Raises :class:`ContractError` on anything unreadable or of a higher version."""
    return decode("claims at admission", VERSION, Admitted, data)


def swapped(seen: SeenClaim | None, uid: str, *, gpu: bool) -> bool:
    """Whether the claim that a pod now has is for GPUs that admission did not decide about.

    ``seen``: what the annotation says of it, None where it says nothing; ``uid``: of the
    ResourceClaim that the pod uses now; ``gpu``: whether that one is for GPUs.
    """
    if not gpu:
        return False
    if seen is None or not seen.gpu:
        return True
    return seen.kind == "ResourceClaim" and seen.uid not in {"", uid}
