"""What a decision needs and the cache does not have: read once, live, within bounds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, TypeVar

import anyio
from preflight_kube.admission.reviews import Unavailable
from preflight_kube.client.client import Client, KubeError, NotFound

from preflight_mnnvl.api.names import GROVE_GROUP, RESOURCE_GROUP, is_name
from preflight_mnnvl.api.types import PodCliqueSet, shown
from preflight_mnnvl.core.claims import ClaimRef
from preflight_mnnvl.core.support import Support

__all__ = ["GroveLookups"]

T = TypeVar("T")
LONGEST: Final = 2.0
"""Seconds for one lookup; the API server waits for the answer."""


class GroveLookups:
    """Each raises :class:`~preflight_kube.admission.reviews.Unavailable` where the cluster does not
    say.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def set_(self, namespace: str, name: str) -> PodCliqueSet | None:
        """A PodCliqueSet that the cache does not have yet; None where it does not exist."""
        if not is_name(name):  # labels are validated after admission
            return None
        path = f"/apis/{GROVE_GROUP}/v1alpha1/namespaces/{namespace}/podcliquesets/{name}"
        return await self._asked(f"the PodCliqueSet {shown(name)}", path, PodCliqueSet)

    async def classes(
        self, namespace: str, refs: Iterable[ClaimRef], support: Support
    ) -> dict[ClaimRef, Collection[str]]:
        """The device classes that claims and templates ask for, of those that exist."""
        found: dict[ClaimRef, Collection[str]] = {}
        for ref in dict.fromkeys(refs):
            if not is_name(ref.name):  # so are claims
                continue
            plural = "resourceclaims" if ref.kind == "ResourceClaim" else "resourceclaimtemplates"
            version = support.claim_version or "v1"
            path = f"/apis/{RESOURCE_GROUP}/{version}/namespaces/{namespace}/{plural}/{ref.name}"
            one = await self._asked(f"the {ref.kind} {shown(ref.name)}", path, dict[str, Any])
            if one is not None:
                found[ref] = _classes(one)
        return found

    async def _asked(self, what: str, path: str, type_: type[T]) -> T | None:
        try:
            with anyio.fail_after(LONGEST):
                return await self._client.get(path, type_)
        except NotFound:
            return None
        except (KubeError, TimeoutError) as error:
            raise Unavailable(
                f"{what} cannot be read ({_why(error)}); this is tried again"
            ) from error


def _why(error: Exception) -> str:
    return shown(str(error).rstrip(".") or f"no answer within {LONGEST:g} s", 300)


def _classes(claim: dict[str, Any]) -> list[str]:
    """Of a claim or a claim template, in the shape of any version."""
    spec = claim.get("spec") or {}
    spec = spec.get("spec") or spec
    found: list[str] = []
    for one in (spec.get("devices") or {}).get("requests") or ():
        named = (one, one.get("exactly") or {}, *(one.get("firstAvailable") or ()))
        found += [
            name for request in named if isinstance(name := request.get("deviceClassName"), str)
        ]
    return found
