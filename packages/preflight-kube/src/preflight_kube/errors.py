"""What can go wrong between us and the API server, by what the caller should do about it."""

from __future__ import annotations

import msgspec


class KubeError(Exception):
    """The cluster cannot be reached, or refuses; the message is one sentence for a person.

    ``status`` is the HTTP status (0: no answer), ``reason`` the machine-readable reason of the
    server's Status, ``retry_after`` the seconds for which the server asks us to wait.
    """

    retry_after: float | None = None

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class BadAccess(KubeError):
    """A kubeconfig or a ServiceAccount's files that cannot be used: bad input, whatever the cluster
    would say.
    """


class NoCluster(BadAccess):
    """There is no API server to ask: this is not a pod, and no kubeconfig is named."""


class NotFound(KubeError):
    """404: no such object, or no such API group."""


class Conflict(KubeError):
    """409: somebody else wrote the object first, or it exists already (``reason`` AlreadyExists):
    read it again.
    """


class Gone(KubeError):
    """410: the version asked from has been compacted away: list again."""


class Invalid(KubeError):
    """422: the server has validated the object and refuses it."""


class PreconditionFailed(KubeError):
    """422 to a JSON patch that does not apply: a ``test`` failed, or a path is not there."""


class Unusable(KubeError):
    """The object is there, but what it holds cannot be read; another try changes nothing."""


class Fenced(KubeError):
    """Not sent: the right to write was gone when the request's turn came."""


# --- what the server says of itself


class _Details(msgspec.Struct):
    causes: list[msgspec.Raw] | None = None


class Status(msgspec.Struct):
    """The API server's answer to what it refuses."""

    kind: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def refused(what: str, code: int, status: Status, *, json_patch: bool = False) -> KubeError:
    """The error that a refusal is."""
    kind = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}.get(code, KubeError)
    # An object that fails validation comes with its causes; a patch that could not be applied comes
    # with none.
    if json_patch and code == 422 and not (status.details and status.details.causes):
        kind = PreconditionFailed
    return kind(f"{what}: the API server answered {code} ({status.message}).", code, status.reason)
