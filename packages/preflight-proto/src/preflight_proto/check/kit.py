"""The variables that every check has, whatever it tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .. import names
from .settings import duration, one_of, setting, text, whole_number

OBSERVE: Final = "observe"


@dataclass(frozen=True)
class KitSettings:
    """What the webhook gives to every injected check; a check's ``--help`` says
    what each is for.
    """

    socket: str = setting(
        names.ENV_CONNECTOR_SOCKET,
        text("a socket path", f"e.g. {names.SOCKET_URI}"),
        default=names.SOCKET_URI,
        help=f"where the node's platform connector listens; {names.SOCKET_OFF}: nothing is reported",
    )
    token_path: str | None = setting(
        names.ENV_CONNECTOR_TOKEN_PATH,
        text("a path", f"e.g. {names.TOKEN_PATH}"),
        default=None,
        help="file with the bearer token for the connector; when set, nothing is sent without one",
    )
    node_name: str = setting(
        names.ENV_NODE_NAME,
        text("a node name", "the node's name (downward API: spec.nodeName)"),
        help="the node that events are about",
    )
    pod_name: str = setting(
        names.ENV_POD_NAME,
        text("a pod name", "the pod's name (metadata.name)"),
        default="",
        help="for log lines and metadata",
    )
    pod_uid: str = setting(
        names.ENV_POD_UID,
        text("a uid", "the pod's uid (metadata.uid)"),
        default="",
        help="a roster for another uid is ignored",
    )
    pod_ip: str = setting(
        names.ENV_POD_IP,
        text("an address", "the pod's IP (status.podIP)"),
        default="",
        help="for the rendezvous",
    )
    expected_gpus: int | None = setting(
        names.ENV_EXPECTED_GPUS,
        whole_number(0),
        default=None,
        help="how many GPUs the pod was given; fewer fail the check (GPU_MISSING), more are inconclusive",
    )
    check_timeout: float | None = setting(
        names.ENV_CHECK_TIMEOUT,
        duration(least=1),
        default=None,
        help="how long the check may take",
    )
    strategy: str = setting(
        names.ENV_PROCESSING_STRATEGY,
        one_of("EXECUTE_REMEDIATION", "STORE_ONLY", "STORE_AND_ANALYSE"),
        default="EXECUTE_REMEDIATION",
        help="what the connector does with our events; never changes the exit status",
    )
    gate: str = setting(
        names.ENV_GATE,
        one_of("enforce", OBSERVE),
        default="enforce",
        help="observe measures, reports with STORE_ONLY, and exits 0 whatever comes of it, a check that is misconfigured included",
    )
    on_inconclusive: str | None = setting(
        names.ENV_ON_INCONCLUSIVE,
        one_of("block", "allow"),
        default=None,
        help="whether a check that could not judge holds the pod back",
    )
    exit_failed: int = setting(
        names.ENV_EXIT_FAILED,
        whole_number(1, 125),
        default=1,
        help="exit status of a check that failed",
    )
    exit_peer_failed: int = setting(
        names.ENV_EXIT_PEER_FAILED,
        whole_number(1, 125),
        default=1,
        help="exit status where another member of the gang is the cause (PEER_FAILED) and the pod is held back",
    )
    exit_inconclusive: int = setting(
        names.ENV_EXIT_INCONCLUSIVE,
        whole_number(1, 125),
        default=1,
        help="exit status of a check that could not judge, where that holds the pod back",
    )
    result_path: str = setting(
        names.ENV_RESULT_PATH,
        text("a path", f"e.g. {names.RESULT_PATH}"),
        default=names.RESULT_PATH,
        help="file for the one-line JSON result (the container's termination message)",
    )

    @property
    def observe(self) -> bool:
        """Whether no outcome holds the pod back (``GATE=observe``)."""
        return self.gate == OBSERVE


def observes(environ: Mapping[str, str]) -> bool:
    """Whether ``environ`` says that no outcome holds the pod back, whatever else in it cannot be
    read.

    A GATE that is misspelt does not: nobody knows which of the two was meant, and the stricter one
    is the default.
    """
    return environ.get(names.ENV_GATE, "").strip() == OBSERVE
