"""One mistake of an operator in a rollout that only observes, a row of ``e2e/matrix/observe.toml``.

It holds no pod back, and it is named: by the webhook's validation before any pod exists
(``refused``), or by the check, in its log, its termination message, and so in an Event and a
metric. Each check's own tests run its rows as processes, under ``GATE=observe``; the webhook's
tests look at ``refused``. ``e2e/tests/cluster/test_observe_on_a_cluster.py`` runs them as pods of
one release; see :mod:`.rollout`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Mistake(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``config``: what stands in the webhook's configuration besides the check's name and image;
    ``refused``: a text of the sentence that refuses it, empty where only the pod can tell.

    ``env``: what the check is given in place of what is right; ``without``: programs that its image
    lacks; ``socket``: whether the platform connector's socket is there; ``node``: what differs on
    the node from a healthy one. ``outcome`` and ``code``: how the check ends, with exit status 0;
    ``says``: a text of its log. No ``outcome``: the configuration is refused, so no pod gets to see
    it. ``no_pod``: why it is not run as a pod, though its check runs as a process.
    """

    id: str
    mistake: str
    check: Literal["dcgm-diag", "nccl-loopback", "nccl-allreduce"]
    config: dict[str, Any] = {}
    refused: str = ""
    env: dict[str, str] = {}
    without: tuple[str, ...] = ()
    socket: bool = True
    node: dict[str, Any] = {}
    outcome: Literal["", "passed", "skipped", "failed", "misconfigured", "inconclusive"] = ""
    code: str = ""
    says: str = ""
    no_pod: str = ""
