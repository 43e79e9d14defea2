"""Helm's own engine for our charts: render and lint without a cluster, install and upgrade with
one.

The engine is Helm's Go library in a wheel, so hooks, three-way upgrades and server-side apply are
those of the ``helm`` program; nothing of it is imitated here.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, Config, HelmError, lint

CHARTS = Path(__file__).resolve().parents[4] / "charts"
UMBRELLA = CHARTS / "preflight"
PARTS = UMBRELLA / "charts"
INJECTOR = PARTS / "preflight-injector"
GANG = PARTS / "preflight-gang"
COMPUTEDOMAIN = PARTS / "preflight-computedomain"
GPU_SCHEDULER = PARTS / "preflight-gpu-scheduler"

_SECONDS = 180
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it takes a tenth of the time

Values = dict[str, Any]
Object = dict[str, Any]


REQUIRED: dict[Path, Values] = {
    COMPUTEDOMAIN: {"featureGates": {"HostManagedIMEX": True}},
    GPU_SCHEDULER: {"kubeScheduler": {"image": "registry.example/kube-scheduler:v1.36.3"}},
}
"""Values without which a chart is not installed."""


class ChartError(Exception):
    """Helm refuses the chart, the values or the release; the message is Helm's own."""


@contextmanager
def _helm() -> Iterator[None]:
    """What Helm raises is a ChartError."""
    try:
        yield
    except HelmError as error:
        raise ChartError(str(error)) from error


def render(
    chart: Path, values: Values | None = None, *, namespace: str = "preflight", revision: int = 1
) -> list[Object]:
    """Every object that an install would create, checked against the values' schema. Raises
    ChartError. What was made of our own charts is kept.
    """
    make = _render if chart.is_relative_to(CHARTS) else _render.__wrapped__
    parts = make(chart, json.dumps(values), namespace, revision)
    return [each for part in parts for each in pickle.loads(part)]


@lru_cache(maxsize=256)
def _render(chart: Path, text: str, namespace: str, revision: int) -> tuple[bytes, ...]:
    """The objects of each file, pickled: each caller may change its own."""
    values: Values | None = json.loads(text)
    with _helm(), Chart.load(chart) as loaded:
        loaded.validate_schema(loaded.merge_values(values))
        files = loaded.render(values, name="preflight", namespace=namespace, revision=revision)
    manifests = (text for name, text in sorted(files.items()) if name.endswith(".yaml"))
    return tuple(_documents(text) for text in manifests)


@lru_cache(maxsize=4096)
def _documents(manifest: str) -> bytes:
    """Objects of a file, parsed once: under most values most files are the same."""
    return pickle.dumps([each for each in yaml.load_all(manifest, _LOADER) if each])


def version(chart: Path) -> str:
    """What the chart installs unless values say otherwise: its ``appVersion``."""
    return str(yaml.load((chart / "Chart.yaml").read_text(), _LOADER)["appVersion"])


def only(objects: list[Object], kind: str, component: str | None = None) -> Object:
    """The one object of a kind (and component) among many. Raises ValueError when there is none, or
    more.
    """
    matches = [o for o in objects if o["kind"] == kind]
    if component is not None:
        label = "app.kubernetes.io/component"
        matches = [o for o in matches if o["metadata"]["labels"].get(label) == component]
    if len(matches) != 1:
        raise ValueError(f"{len(matches)} objects of kind {kind}")
    return matches[0]


def problems(chart: Path, values: Values | None = None) -> list[str]:
    """What `helm lint --strict` complains of; advice (a missing icon) is left out."""
    report = lint(chart, values, strict=True, with_subcharts=True)
    warning = 2
    return [f"{m['path']}: {m['error']}" for m in report["messages"] if m["severity"] >= warning]


@dataclass
class Release:
    """One release of the umbrella chart on a real cluster."""

    namespace: str
    kubeconfig: Path
    name: str = "preflight"
    chart: Path = UMBRELLA
    _config: Config = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._config = Config(kubeconfig_path=self.kubeconfig, namespace=self.namespace)

    def install(self, values: Values, *, wait: bool = True) -> None:
        """`helm install --create-namespace [--wait]`. Raises ChartError."""
        self._do("install", values, wait=wait, create_namespace=True)

    def upgrade(self, values: Values, *, wait: bool = True) -> None:
        """`helm upgrade [--wait]` with exactly these values. Raises ChartError."""
        self._do("upgrade", values, wait=wait, reset_values=True)

    def uninstall(self, *, wait: bool = True) -> None:
        """`helm uninstall [--wait]`; nothing to do where there is no release. Raises ChartError."""
        how: Any = {"wait": _strategy(wait), "timeout": _SECONDS}
        with _helm():
            self._config.uninstall(self.name, ignore_not_found=True, **how)

    def rollback(self) -> None:
        """`helm rollback` to the revision before. Raises ChartError."""
        with _helm():
            self._config.rollback(self.name, wait=_strategy(False), timeout=_SECONDS)

    def _do(self, action: str, values: Values, *, wait: bool, **options: bool) -> None:
        how: Any = {"namespace": self.namespace, "timeout": _SECONDS, "wait": _strategy(wait)}
        with _helm(), Chart.load(self.chart) as chart:
            chart.validate_schema(chart.merge_values(values))
            getattr(self._config, action)(chart, self.name, values, **how, **options)


def _strategy(wait: bool) -> str:
    return "watcher" if wait else "hookOnly"
