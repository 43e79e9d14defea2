"""What a controller makes of scenario files, as a trace that others can compare with their own
controller's on the same files.

A scenario is a TOML file of steps, in order: ``wrap`` (name, and each: how many pods; suspended;
annotations), ``pods`` (run those of a wrapper), ``pod`` (one of them, and its phase), ``suspend``,
``delete``, ``remove`` (its component), ``label`` (a node), ``until`` (a phase, or a condition and
its status). Pods are made and ended here, as operators, the garbage collector and kubelets do.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preflight_testing.apiserver import ApiServer

from . import served
from .appwrapper import PROGRAM, controller
from .appwrapper_world import LOADS, MERGE, PODS, WRAPPERS, api_server, load_of, pod_of
from .bars import BenchMeasurement
from .cluster import BenchServer
from .following import Follow
from .load import BenchError, until

Json = dict[str, Any]

SCENARIOS = Path(__file__).resolve().parents[3] / "bench" / "appwrapper"
PREFIX = "workload.codeflare.dev.appwrapper/"
NODES = ("node-a", "node-b")
STEPS = frozenset({"wrap", "pods", "pod", "suspend", "delete", "remove", "label", "until"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenarios",
        nargs="*",
        type=Path,
        metavar="SCENARIO",
        help="TOML files (all that are there)",
    )
    parser.add_argument(
        "--program",
        type=served.program,
        default=PROGRAM,
        help="the preflight-appwrapper to play them on (%(default)s)",
    )


def run(args: argparse.Namespace) -> BenchMeasurement:
    files = args.scenarios or sorted(SCENARIOS.glob("*.toml"))
    scenarios = {path.stem: read(path) for path in files}
    traces: Json = {}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
        }
        wanted = {
            "level": "Request",
            "verbs": ["create", "delete"],
            "resources": [{"group": "bench.example.com"}, {"group": ""}],
        }
        (home / "audit.yaml").write_text(
            json.dumps({**policy, "rules": [wanted, {"level": "None"}]})
        )
        more = [f"--audit-policy-file={home}/audit.yaml", f"--audit-log-path={home}/audit.log"]
        with (
            api_server(args.program, home / "api", more=more) as server,
            controller(args.program, server, home, "leaseDuration: 15s\n"),
        ):
            for title, steps in scenarios.items():
                with Play(server) as play:
                    traces[title] = play.play(steps, home / "audit.log")
                print(
                    f"{title}: {' → '.join(phase['phase'] for phase in phases(traces[title]))}",
                    flush=True,
                )
    return BenchMeasurement({"appwrapper_trace": traces}, shown=False)


def read(path: Path) -> list[Json]:
    """The steps of a file. Raises :class:`BenchError` for one that cannot be played, with its
    place.
    """
    try:
        steps = list(tomllib.loads(path.read_text())["step"])
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path}: is not a scenario ({error!r}); it has [[step]] after [[step]]."
        ) from None
    for i, step in enumerate(steps):
        if not isinstance(step, dict) or len(STEPS & step.keys()) != 1:
            raise BenchError(
                f"{path}: step[{i}] must have exactly one of {', '.join(sorted(STEPS))}."
            )
    return steps


def phases(trace: Mapping[str, Any]) -> list[Json]:
    """Of the first wrapper, where they change."""
    distinct: list[Json] = []
    for phase in next(iter(trace["wrappers"].values()), []):
        if not distinct or distinct[-1]["phase"] != phase["phase"]:
            distinct.append(phase)
    return distinct


class Play:
    """One scenario at a time; whatever it leaves is removed."""

    def __init__(self, server: ApiServer) -> None:
        self._server = BenchServer.of(server)
        self._wrappers: dict[str, list[Json]] = {}
        self._now: dict[str, Json] = {}
        self._pods: dict[str, int] = {}
        self._began = time.monotonic()
        self._follows: list[Follow[Json]] = []

    def __enter__(self) -> Play:
        for name in NODES:
            if name not in {
                node["metadata"]["name"]
                for node in self._server.call("GET", "/api/v1/nodes")["items"]
            }:
                self._server.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        self._follows = [
            Follow(self._server, WRAPPERS, self._observe_wrapper, Json),
            Follow(self._server, LOADS, self._observe_load, Json),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._now):
            self._patch(
                f"{WRAPPERS}/{name}", {"metadata": {"annotations": {PREFIX + "retryLimit": "0"}}}
            )
            self._server.call("DELETE", f"{WRAPPERS}/{name}")
        until(lambda: not self._now, "everything is gone")
        for name in NODES:
            self._patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": None}})
        for follow in self._follows:
            follow.close()

    def play(self, steps: list[Json], audit: Path) -> Json:
        """Wrappers by name, each with what its status was, and creations and deletions in their
        order.
        """
        before = len(audit.read_text().splitlines())
        for step in steps:
            self._do(step)
        acts = [json.loads(line) for line in audit.read_text().splitlines()[before:]]
        acts_ = [
            act(entry)
            for entry in acts
            if entry.get("userAgent", "").startswith("preflight-appwrapper") and counts(entry)
        ]
        return {"wrappers": copy.deepcopy(self._wrappers), "acts": acts_}

    def _do(self, step: Json) -> None:
        match step:
            case {"wrap": str(name)}:
                notes = {PREFIX + key: value for key, value in step.get("annotations", {}).items()}
                component: Json = {"template": load_of(name)}
                component["podSets"] = [
                    {"path": "template.spec.template", "replicas": step.get("each", 1)}
                ]
                self._pods[name] = step.get("each", 1)
                about = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper"}
                spec = {"suspend": step.get("suspended", False), "components": [component]}
                body = {**about, "metadata": {"name": name, "annotations": notes}, "spec": spec}
                self._server.call("POST", WRAPPERS, body)
            case {"pods": str(name)}:
                until(lambda: self._there(name), f"the component of {name}")
                load = self._server.call("GET", f"{LOADS}/{name}")
                for i in range(self._pods[name]):
                    self._server.call("POST", PODS, pod_of(load, i, step.get("node", NODES[0])))
                    self._patch(
                        f"{PODS}/{name}-{i}/status",
                        {"status": {"phase": step.get("phase", "Running")}},
                    )
            case {"pod": str(name), "phase": str(phase)}:
                self._patch(f"{PODS}/{name}/status", {"status": {"phase": phase}})
            case {"suspend": str(name), "value": bool(value)}:
                self._patch(f"{WRAPPERS}/{name}", {"spec": {"suspend": value}})
            case {"delete": str(name)}:
                self._server.call("DELETE", f"{WRAPPERS}/{name}")
            case {"remove": str(name)}:
                self._server.call("DELETE", f"{LOADS}/{name}")
            case {"label": str(node), "labels": dict(labels)}:
                self._patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
            case {"until": str(name)}:
                until(lambda: self._holds(name, step), f"{name}: {step}")
            case _:
                raise BenchError(
                    f"the step {step} cannot be played; the module's text has those that can."
                )

    def _holds(self, name: str, step: Json) -> bool:
        if step.get("phase") == "":  # it is gone
            return name not in self._now
        known = self._now.get(name, {"phase": "", "conditions": {}})
        wanted = step.get("conditions", {})
        return step.get("phase", known["phase"]) == known["phase"] and all(
            known["conditions"].get(type_, ["", ""])[0] == status
            for type_, status in wanted.items()
        )

    def _there(self, name: str) -> bool:
        return name in {
            load["metadata"]["name"] for load in self._server.call("GET", LOADS)["items"]
        }

    def _patch(self, path: str, body: Json) -> None:
        self._server.burst("PATCH", [(path, body)], MERGE)

    # --- what is seen

    def _observe_wrapper(self, type_: str, raw: Json) -> None:
        name, status = raw["metadata"]["name"], raw.get("status", {})
        if type_ == "DELETED":
            self._now.pop(name, None)
            return
        conditions = {
            row["type"]: [row["status"], row["reason"]] for row in status.get("conditions", [])
        }
        known = {"phase": status.get("phase", ""), "conditions": conditions}
        known["resettingCount"] = status.get("resettingCount", 0)
        self._now[name] = known
        trace = self._wrappers.setdefault(name, [])
        if not trace or {key: trace[-1][key] for key in known} != known:
            trace.append({"at_s": round(time.monotonic() - self._began, 1), **known})

    def _observe_load(self, type_: str, raw: Json) -> None:
        if type_ != "DELETED":
            return
        uid = raw["metadata"]["uid"]
        now = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        for pod in self._server.call("GET", PODS)["items"]:
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid:
                self._server.call("DELETE", f"{PODS}/{pod['metadata']['name']}", now)


def counts(entry: Json) -> bool:
    """A creation or deletion that was done, of a component or a pod."""
    return entry["responseStatus"]["code"] < 300 and entry["objectRef"]["resource"] in {
        "loads",
        "pods",
    }


def act(entry: Json) -> Json:
    """As it stands in a trace; options are those of a deletion."""
    about = entry["objectRef"]
    sent = entry.get("requestObject") or {}
    result = {
        "verb": entry["verb"],
        "resource": about["resource"],
        "name": about.get("name") or sent["metadata"]["name"],
    }
    if entry["verb"] == "delete":
        kept = ("propagationPolicy", "gracePeriodSeconds")
        result["options"] = {key: sent[key] for key in kept if key in sent}
        result["options"]["uid"] = "uid" in sent.get("preconditions", {})
    return result
