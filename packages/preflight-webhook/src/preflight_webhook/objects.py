"""The fields of Kubernetes objects that the webhook reads, and no others.

msgspec skips what is not named here without building it; that is most of the webhook's speed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "Container",
    "Load",
    "Metadata",
    "Mount",
    "Os",
    "Pod",
    "Request",
    "Resources",
    "Review",
    "Sized",
    "Spec",
    "Volume",
]

Amount = str | int | float
Amounts = dict[str, Amount]


class _Object(msgspec.Struct, rename="camel", gc=False):
    pass


class Resources(_Object):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Mount(_Object):
    name: str = ""


class Sized(_Object):
    """What a container costs, and whether it is a sidecar."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class Load(_Object):
    """What a whole pod costs: its containers' resources, and its own."""

    containers: list[Sized]
    init_containers: list[Sized]
    resources: Resources | None = None


class Container(_Object):
    """``resources`` stays as it came: it is read only for pods whose like has not been seen (see :mod:`.admission`)."""

    name: str = ""
    resources: msgspec.Raw = msgspec.Raw(b"null")
    restart_policy: str | None = None
    volume_mounts: list[Mount] | None = None


class Volume(_Object):
    name: str = ""


class Os(_Object):
    name: str = ""


class Spec(_Object):
    containers: list[Container]
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    resources: msgspec.Raw = msgspec.Raw(b"null")
    os: Os | None = None


class Metadata(_Object):
    name: str = ""
    generate_name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Pod(_Object):
    spec: Spec
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Kind(_Object):
    kind: str
    group: str = ""
    version: str = ""


class Request(_Object):
    uid: Annotated[str, msgspec.Meta(min_length=1)]
    kind: Kind
    operation: str = "CREATE"
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw()
    dry_run: bool = False


class Review(_Object):
    request: Request
    api_version: str
    kind: str
