"""What can go wrong between us and the API server, by what the caller should do about it."""

from __future__ import annotations


class KubeError(Exception):
    """The cluster cannot be reached, or refuses; the message is one sentence for a person.

    ``status`` is the HTTP status (0: no answer), ``reason`` the machine-readable reason of the server's Status.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class NotFound(KubeError):
    """404: no such object, or no such API group."""


class Conflict(KubeError):
    """409: somebody else wrote the object first, or it exists already (``reason`` AlreadyExists): read it again."""


class Gone(KubeError):
    """410: the version asked from has been compacted away: list again."""


class Invalid(KubeError):
    """422: the server has validated the object and refuses it."""


class PreconditionFailed(KubeError):
    """422 to a JSON patch that does not apply: a ``test`` failed, or a path is not there."""


class Fenced(KubeError):
    """Not sent: the right to write was gone when the request's turn came."""
