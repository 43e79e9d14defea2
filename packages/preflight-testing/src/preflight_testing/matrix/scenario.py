"""One row of the fault matrix: what is broken, which pods are created, and what must come of them.

A scenario is steps in order. A step breaks (or repairs) nodes, creates pods, and says how each ends
and which events the nodes' platform connectors receive. Nodes are named by letters and bound to
real ones when the scenario runs; GPUs are named by their index on the node.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec

from .fault import Fault
from .mistake import Mistake

MATRIX = Path(__file__).resolve().parents[5] / "e2e" / "matrix"


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ExpectedCheck(_Row, frozen=True, kw_only=True):
    """How one check of a pod must end. ``says``: a text that its log must contain, with the name of
    node b in the place of `{b}`. `not run`: one before it failed.
    """

    check: str
    outcome: Literal["passed", "skipped", "failed", "misconfigured", "inconclusive", "not run"]
    code: str = ""
    exit_code: int | None = None
    says: str = ""


class ExpectedEvent(_Row, frozen=True, kw_only=True):
    """An unhealthy event that must arrive; ``gpu`` is an index on the node, none for the node
    itself.
    """

    check_name: str
    fatal: bool
    action: str
    code: str
    gpu: int | None = None


class Interrupt(_Row, frozen=True, kw_only=True):
    """A check is told to terminate, in place, when its log has the text ``when``; its kubelet
    starts it again.
    """

    check: str
    when: str


class ScenarioClaim(_Row, frozen=True, kw_only=True):
    """A device claim of a pod, by the ``template`` that it is made from or the ``claim`` that it
    names; its own container uses it.
    """

    name: str
    template: str = ""
    claim: str = ""


class ScenarioPod(_Row, frozen=True, kw_only=True):
    """A pod and its end. ``merge`` is merged into the pod (JSON merge patch) before it is created.

    ``gang``: id and size of the gang that its labels name. ``within``: seconds after its creation
    by which it must have ended. ``interrupt``: what is done to it on its way.

    ``starts``: whether its own container gets to run. ``denied``: a text in the API server's
    refusal. ``stays``: it goes on running until the scenario ends, holding its GPUs. ``tests``:
    which GPUs the engine must have been asked to diagnose. ``given``: which its own container must
    have been given.
    """

    name: str
    node: str
    gpus: int = 1
    claims: tuple[ScenarioClaim, ...] = ()
    gang: tuple[str, int] | None = None
    within: float | None = None
    interrupt: Interrupt | None = None
    starts: bool = True
    denied: str = ""
    stays: bool = False
    checks: tuple[ExpectedCheck, ...] = ()
    events: tuple[ExpectedEvent, ...] = ()
    clears: tuple[str, ...] = ()
    tests: tuple[int, ...] | None = None
    given: tuple[int, ...] | None = None
    init_image: str = ""
    merge: dict[str, Any] = {}


class Object(_Row, frozen=True, kw_only=True):
    """Any other namespaced object to create: where (`scheduling.k8s.io/v1alpha2/podgroups`), and
    its body.
    """

    collection: str
    body: dict[str, Any]


class ScenarioStep(_Row, frozen=True, kw_only=True):
    """``nodes``: by letter, what to change in that node's facts (merged into a healthy node's).

    ``rosters``: every member reads its sealed roster; how long after the last member's address is
    printed, and judged by the gang's bench alone.
    """

    nodes: dict[str, dict[str, Any]] = {}
    objects: tuple[Object, ...] = ()
    pods: tuple[ScenarioPod, ...] = ()
    rosters: bool = False


class Scenario(_Row, frozen=True, kw_only=True):
    """``ring``: e2e runs on clusters; component rows are proven by a test that names the id.
    ``values``: chart values.

    ``skipped_below``: a cluster with fewer nodes skips it, and says so; other rows fail there.
    ``labels``: of its namespace.
    """

    id: str
    fault: str
    sees: str
    ring: Literal["component", "e2e"] = "e2e"
    skipped_below: int | None = None
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    steps: tuple[ScenarioStep, ...]

    @property
    def letters(self) -> list[str]:
        """The nodes that it needs."""
        named = {pod.node for step in self.steps for pod in step.pods} | {
            letter for step in self.steps for letter in step.nodes
        }
        return sorted(named)

    @property
    def timed(self) -> bool:
        """Whether it says how long something may take, so that nothing else
        should run meanwhile.
        """
        return any(step.rosters or any(pod.within for pod in step.pods) for step in self.steps)


class Proof(_Row, frozen=True, kw_only=True):
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


class _File(_Row, frozen=True, kw_only=True):
    """Rows that run pods on a cluster, that run a gang's checks alone, mistakes of a rollout that
    only observes, and proofs by tests.
    """

    scenario: tuple[Scenario, ...] = ()
    fault: tuple[Fault, ...] = ()
    mistake: tuple[Mistake, ...] = ()
    proof: tuple[Proof, ...] = ()


def load(path: Path) -> tuple[Scenario, ...]:
    """The scenarios of one file. Raises ValueError with the file and the path in it."""
    return _read(path).scenario


def load_all(folder: Path = MATRIX) -> tuple[Scenario, ...]:
    """Every scenario of the matrix, in the order of the files' names. Raises ValueError when an id
    is used twice.
    """
    return _whole(folder).scenario


def load_faults(folder: Path = MATRIX) -> tuple[Fault, ...]:
    """Every fault of a gang's fabric, as :func:`load_all`."""
    return _whole(folder).fault


def load_mistakes(folder: Path = MATRIX) -> tuple[Mistake, ...]:
    """Every mistake of an operator, as :func:`load_all`."""
    return _whole(folder).mistake


def load_proofs(folder: Path = MATRIX) -> tuple[Proof, ...]:
    """Every row that a test of its system proves, as :func:`load_all`."""
    return _whole(folder).proof


def fatal_subjects(folder: Path = MATRIX) -> frozenset[tuple[str, bool]]:
    """What the matrix' fatal events are about: the node condition that each becomes, and whether it
    names a GPU. Who is blamed for a fault of a gang's fabric is a node.
    """
    pods = [pod for row in load_all(folder) for step in row.steps for pod in step.pods]
    blamed = any(row.blames for row in load_faults(folder))
    return frozenset(
        (event.check_name, event.gpu is not None)
        for pod in pods
        for event in pod.events
        if event.fatal
    ) | ({("NCCLAllReduceTest", False)} if blamed else set())


@cache
def _whole(folder: Path) -> _File:
    files = [_read(path) for path in sorted(folder.glob("*.toml"))]
    rows = {kind: [*chain(*(getattr(f, kind) for f in files))] for kind in _File.__struct_fields__}
    for each in rows.values():
        counted = Counter(row.id for row in each)
        if twice := sorted(row_id for row_id, times in counted.items() if times > 1):
            raise ValueError(f"matrix: used more than once: {', '.join(twice)}")
    return _File(**{kind: tuple(each) for kind, each in rows.items()})


def _read(path: Path) -> _File:
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path.name}: {error}") from None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a matrix file. A docstring's lines are not those of a description."""
    schema = msgspec.json.schema(_File)
    for definition in schema["$defs"].values():
        if "description" in definition:
            definition["description"] = " ".join(definition["description"].split())
    return schema
