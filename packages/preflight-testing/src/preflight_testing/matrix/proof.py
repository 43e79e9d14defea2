"""One row of a system that has tests of its own for it: what happens, what its users see, and which
test proves it, on what ground.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Proof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``fault``: what breaks or is asked for; ``sees``: what comes of it for users.

    ``ring``: the strongest ground on which the row is run. `pure`: functions and a simulated
    cluster; `process`: our programs as processes, beside doubles; `api-server`: beside real
    kube-apiserver, kube-controller-manager or kube-scheduler; `cluster`: real kubelets, by
    ``e2e/tests/cluster``.

    ``test``: what runs it, ``FOLDER/FILE.py::FUNCTION`` from the root of the repository, with
    ``[ID]`` where one of its parameters is the row.
    """

    id: str
    fault: str
    sees: str
    ring: Literal["pure", "process", "api-server", "cluster"]
    test: str
