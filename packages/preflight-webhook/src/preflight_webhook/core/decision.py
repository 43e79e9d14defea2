"""What the webhook decided about one pod, and why. Every step of :mod:`.admit` adds to it."""

from __future__ import annotations

import binascii
from typing import Any, Final

import msgspec
from preflight_kube.admission.review import MOST_TEXT, Response
from preflight_proto.admitted import SeenClaim
from preflight_proto.stamp import Stamp

from preflight_webhook.api.review import shown
from preflight_webhook.core.detect.devices import Ref

UNKNOWN: Final = "unknown-resource"
"""Why a pod gets no checks that asks for what may be a GPU and is not configured."""

_operations: Final[msgspec.json.Decoder[list[dict[str, Any]]]] = msgspec.json.Decoder(
    list[dict[str, Any]]
)


class Skip(msgspec.Struct, frozen=True):
    """A check that was not injected: ``reason`` is from a closed set and counted, ``message`` is
    one sentence.
    """

    check: str
    reason: str
    message: str


class UnreadEnvFrom(msgspec.Struct, frozen=True):
    """Variables of the workload that a check may miss: what the ConfigMap or Secret (``kind``) at
    ``where`` holds is not known at admission, and is never read."""

    where: str
    kind: str
    name: str
    check: str


class Decision(msgspec.Struct):
    """``result`` is from a closed set and becomes the metric's label:
    injected, stamped (a gang's member that gets no check), unchanged (already as it should be),
    no-gpu, no-checks, windows, mirror, denied; or needs-claims: nothing is decided yet."""

    result: str
    message: str = ""
    checks: list[str] = []
    skipped: list[Skip] = []
    gpus: dict[str, int] = {}
    stamp: Stamp | None = None
    """The pod's gang, where it has one."""
    encoded: bytes = b""
    """The patch as the answer carries it: a JSON string of base64, or nothing. One text is kept for
    alike pods, not a hundred objects.
    """
    warnings: list[str] = []
    unseen: list[UnreadEnvFrom] = []
    claims: dict[str, SeenClaim] = {}
    """What was known of the pod's resource claims, by their names in it;
    written down in the pod.
    """
    logged: bytes = b""
    """What a log line about any of the alike pods says, once one has been written
    (:func:`preflight_kube.logs.part`).
    """
    answer: Response | None = None
    """The API server's answer, once there has been one."""
    needs: tuple[Ref, ...] = ()
    """Claims to be looked up before it can be decided."""

    @property
    def patch(self) -> list[dict[str, Any]]:
        """The patch's operations."""
        return _operations.decode(binascii.a2b_base64(self.encoded[1:-1])) if self.encoded else []

    @property
    def label(self) -> str:
        """The result with its reason, where all checks were left out for the same one."""
        if self.result not in {"no-checks", "stamped"}:
            return self.result
        reasons = {skip.reason for skip in self.skipped}
        return f"{self.result}-{reasons.pop()}" if len(reasons) == 1 else self.result

    @property
    def response(self) -> Response:
        """What the API server is answered."""
        if self.answer is None:
            self.answer = Response(
                allowed=not self.denied,
                patch=msgspec.Raw(self.encoded or b""),
                message=shown(self.message, MOST_TEXT) if self.denied else "",
                warnings=[shown(warning, MOST_TEXT) for warning in self.warnings],
                result=self.label,
            )
        return self.answer

    @property
    def denied(self) -> bool:
        """Whether the pod is refused."""
        return self.result == "denied"
