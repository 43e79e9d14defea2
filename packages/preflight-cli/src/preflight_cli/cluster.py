"""What was read of a cluster: objects as the API server shows them, by kind. Pure."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, NamedTuple

import yaml

Object = Mapping[str, Any]
NOBODY: Final = ("NAMESPACE", "RELEASE")
"""Stand-ins for a release that nobody knows, in a line to type."""
_SOURCE: Final = re.compile(r"^# Source: (\S+?)/templates/", re.MULTILINE)
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


class Problem(NamedTuple):
    """``where``: the object; ``what`` is wrong with it; ``do``: a line to type."""

    where: str
    what: str
    do: str


class KeptRelease(NamedTuple):
    """A release as Helm keeps it; ``manifest``: its objects, none where they cannot be read;
    ``forced``: what an upgrade needs to put back what another hand has changed; ``paths``: by
    chart, what the names of its values begin with, nothing for the chart that was installed itself;
    ``before``: by revision, how the earlier ones ended.
    """

    status: str
    revision: int
    manifest: Sequence[Object]
    forced: str
    paths: Mapping[str, str]
    before: Mapping[int, str]


class Installation:
    """``read``: objects by kind, as far as they were served and allowed; ``now``: of the cluster's
    clocks, as its kubelets' leases show it; ``version``: what `/version` says; ``partly``: kinds of
    which there may be more.
    """

    def __init__(
        self,
        read: Mapping[str, Sequence[Object]],
        now: datetime,
        version: Object,
        partly: Collection[str] = (),
    ) -> None:
        self._read, self.now, self.version, self._partly = read, now, version, partly

    def of(self, *kinds: str) -> list[Object]:
        """All objects of these kinds that were read."""
        return [item for kind in kinds for item in self._read.get(kind, ())]

    def knows(self, kind: str) -> bool:
        """Tell whether all of that kind could be read."""
        return kind in self._read and kind not in self._partly

    def named(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where there is none."""
        matches = (x for x in self.of(kind) if key_of(x) == (namespace, name))
        return next(matches, None)

    @cached_property
    def parts(self) -> dict[str, Object]:
        """By name, one object of each part of Preflight that is installed."""
        by_name = {
            labels_of(item).get("app.kubernetes.io/name", ""): item
            for item in self.of("Deployment", "DaemonSet")
        }
        return {name: by_name[name] for name in sorted(by_name) if name}

    def release_of(self, part: str) -> tuple[str, str]:
        """The release that has installed a part, as :func:`release_of` says it."""
        return release_of(self.parts[part]) if part in self.parts else NOBODY

    @cached_property
    def config(self) -> dict[str, Any]:
        """By part: what stands in the ConfigMap of its configuration."""
        configs: dict[str, Any] = {}
        for item in self.of("ConfigMap"):
            part = labels_of(item).get("app.kubernetes.io/name", "")
            if text := (item.get("data") or {}).get("config.yaml"):
                with suppress(yaml.YAMLError):  # somebody's edit; told of the ConfigMap itself
                    configs[part] = yaml.safe_load(text) or {}
        return configs

    @cached_property
    def releases(self) -> dict[tuple[str, str], KeptRelease]:
        """By namespace and name, the newest revision of each that Helm keeps in a Secret."""
        kept: dict[tuple[str, str], list[Object]] = {}
        for item in sorted(filter(of_helm, self.of("Secret")), key=_revision):
            kept.setdefault((key_of(item)[0], labels_of(item).get("name", "")), []).append(item)
        return {key: _stored(*kept[key]) for key in sorted(kept)}

    def since(self, moment: str | None) -> timedelta:
        """How long ago an RFC 3339 ``moment`` is; nothing where there is none."""
        if not moment:
            return timedelta()
        return self.now - datetime.fromisoformat(moment.replace("Z", "+00:00"))

    def upgrade_of(self, release: tuple[str, str]) -> str:
        """The command that puts the objects of a release back."""
        known = self.releases.get(release)
        forced = known.forced if known is not None else ""
        # With --reuse-values a newer chart would get the defaults of the one before it.
        return f"helm -n {release[0]} upgrade {release[1]} CHART --reset-then-reuse-values{forced}"

    def renewal_of(self, namespace: str, otherwise: str) -> str:
        """The command that shows what keeps the certificates of a namespace; ``otherwise`` where no
        CronJob of ours does.
        """
        ours = {component_of(item)[::2] for item in self.of("CronJob")}
        if self.knows("CronJob") and (namespace, "certs") not in ours:
            return otherwise
        return f"kubectl -n {namespace} get cronjobs,jobs -l app.kubernetes.io/component=certs"

    def values_path(self, part: str) -> str:
        """The beginning of the names of a part's values: nothing where it was installed alone, and
        as below the umbrella where that is not known.
        """
        known = self.releases.get(self.release_of(part))
        return f"{part}." if known is None else known.paths.get(part, f"{part}.")

    def setting_of(self, part: str, setting: str) -> str:
        """The command that sets one of a part's values."""
        again = self.upgrade_of(self.release_of(part))
        return f"{again} --set {self.values_path(part)}{setting}"

    def sick_conditions(self) -> dict[str, frozenset[str]]:
        """By part, the node conditions that make a node sick to it, where its configuration has
        any: AppWrapper's are its labeler's.
        """
        lists: dict[str, frozenset[str]] = {}
        for part, of in sorted(self.config.items()):
            if isinstance(of, dict) and (part != "preflight-appwrapper" or self.labels_nodes):
                own = of.get("nodeConditions", (of.get("nodeHealth") or {}).get("conditions"))
                if own is not None:
                    lists[part] = frozenset(own)
        return lists

    @property
    def labels_nodes(self) -> bool:
        """True where AppWrapper's labeler is installed."""
        labeler = ("preflight-appwrapper", "labeler")
        return any(component_of(item)[1:] == labeler for item in self.of("Deployment"))

    @property
    def minor(self) -> int:
        """The cluster's minor version; 0 where it does not say."""
        digits = "".join(filter(str.isdigit, str(self.version.get("minor", ""))))
        return int(digits) if digits else 0


def key_of(item: Object) -> tuple[str, str]:
    """(namespace, name); the first is empty for what is in none."""
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def labels_of(item: Object) -> dict[str, str]:
    """The labels of an object."""
    return (item.get("metadata") or {}).get("labels") or {}


def part_of(item: Object) -> str:
    """Which part of Preflight it belongs to, as its chart labels it."""
    return labels_of(item).get("app.kubernetes.io/name", "")


def component_of(item: Object) -> tuple[str, str, str]:
    """Its namespace, the part of Preflight it belongs to, and the component of that."""
    component = labels_of(item).get("app.kubernetes.io/component", "controller")
    return key_of(item)[0], part_of(item), component


def shown(kind: str, namespace: str, name: str) -> str:
    """An object as a sentence names it."""
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def about(item: Object) -> str:
    """The same of an object at hand."""
    return shown(str(item.get("kind")), *key_of(item))


def template_of(item: Object) -> dict[str, Any]:
    """The pod's spec of a workload."""
    spec: dict[str, Any] = item["spec"]["template"]["spec"]
    return spec


def secrets_of(item: Object) -> list[str]:
    """The names of the Secrets without which no pod of a workload starts."""
    mounted = (volume.get("secret") or {} for volume in template_of(item).get("volumes", []))
    return [of["secretName"] for of in mounted if "secretName" in of and not of.get("optional")]


def release_of(item: Object) -> tuple[str, str]:
    """(namespace, name) of the release that an object belongs to; :data:`NOBODY` of none, and where
    an annotation, which may be any text, is no name that Helm takes.
    """
    notes = item["metadata"].get("annotations") or {}
    namespace = notes.get("meta.helm.sh/release-namespace", "")
    name = notes.get("meta.helm.sh/release-name", "")
    return (namespace, name) if _NAME.fullmatch(namespace) and _NAME.fullmatch(name) else NOBODY


def installed_in(read: Mapping[str, Sequence[Object]]) -> set[str]:
    """The namespaces that parts of Preflight are in, by what administrators alone can make: whom
    cluster roles are bound to, which Services webhooks lead to, and which releases have made
    either, or a policy, as of two bindings one may be gone. None where either was not read.
    """
    bindings, webhooks = "ClusterRoleBinding", "MutatingWebhookConfiguration"
    if not {bindings, webhooks} <= read.keys():
        return set()
    kinds = (bindings, webhooks, "ClusterRole", "ValidatingAdmissionPolicy")
    releases = {release_of(item) for kind in kinds for item in read.get(kind, ())} - {NOBODY}
    bound = (of for item in read[bindings] for of in item.get("subjects") or ())
    clients = (
        of.get("clientConfig") or {} for it in read[webhooks] for of in it.get("webhooks", ())
    )
    called = (client.get("service") or {} for client in clients)
    named = {str(of["namespace"]) for of in (*bound, *called) if of.get("namespace")}
    return named | {namespace for namespace, _ in releases}


def checks_of(injector: Object) -> dict[str, Object]:
    """By name, the checks that pods get by the injector's configuration."""
    every = (check for check in injector.get("checks") or () if isinstance(check, dict))
    return {str(check.get("name")): check for check in every if check.get("enabled", True)}


def tag_minor(image: str) -> int:
    """The minor version in an image's tag; 0 where it has none."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2].removeprefix("v").split(".")
    return int(tag[1]) if len(tag) > 1 and tag[0] == "1" and tag[1].isdigit() else 0


def has_gpus(node: Object, injector: Object) -> bool:
    """Whether a node offers any of NVIDIA's resources but those that the injector knows as none of
    GPUs.
    """
    other = [
        *((injector.get("gpuDetection") or {}).get("otherResourceNames") or ()),
        *((injector.get("networkDetection") or {}).get("resourceNames") or ()),
    ]
    capacity = (node.get("status") or {}).get("capacity") or {}
    return any(
        key.startswith("nvidia.com/")
        and amount != "0"
        and not any(fnmatchcase(key, pattern) for pattern in other)
        for key, amount in capacity.items()
    )


def is_global(kind: str) -> bool:
    """Whether objects of the kind are in no namespace."""
    return kind.startswith(("Cluster", "Custom", "Validating", "Mutating", "DeviceClass", "Namesp"))


def of_helm(secret: Object) -> bool:
    """Whether Helm keeps a release in it."""
    return secret.get("type") == "helm.sh/release.v1"


def _revision(secret: Object) -> int:
    number = labels_of(secret).get("version", "0")
    return int(number) if number.isdigit() else 0


def _stored(*revisions: Object) -> KeptRelease:
    *earlier, secret = revisions
    try:
        packed = base64.b64decode(base64.b64decode((secret.get("data") or {}).get("release", "")))
        kept = json.loads(gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)
        every = list(yaml.load_all(kept["manifest"], getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        charts = [source.split("/charts/") for source in _SOURCE.findall(kept["manifest"])]
    except (ValueError, OSError, KeyError, yaml.YAMLError):
        kept, every, charts = {}, [], []
    # On the server's side, as Helm 4 does by itself, a field that somebody else has set is a
    # conflict, at which an upgrade ends.
    forced = " --force-conflicts" if kept.get("apply_method") == "ssa" else ""
    objects = [item for item in every if isinstance(item, dict) and item.get("kind") != "List"]
    paths = {chart: "".join(f"{name}." for name in [*above, chart][1:]) for *above, chart in charts}
    status = labels_of(secret).get("status", "")
    before = {_revision(item): labels_of(item).get("status", "") for item in earlier}
    return KeptRelease(status, _revision(secret), objects, forced, paths, before)


def differs(wanted: Any, actual: Any, path: str = "") -> str:
    """The first place in which ``actual`` lacks what ``wanted`` has, and what is there; empty where
    there is none. What the API server, or a controller, adds is no difference.
    """
    if isinstance(wanted, dict) and isinstance(actual, dict):
        for key, value in wanted.items():
            if path or key not in {"apiVersion", "kind", "metadata"}:
                if value not in (None, "", [], {}) and key not in actual:
                    return f"{path}{key} is gone"
                if why := differs(value, actual.get(key), f"{path}{key}."):
                    return why
        return ""
    if isinstance(wanted, list) and isinstance(actual, list):
        if len(wanted) != len(actual):
            return f"{path.rstrip('.')} has {len(actual)} entries, not {len(wanted)}"
        numbered = enumerate(zip(wanted, actual, strict=True))
        return next(
            (why for i, pair in numbered if (why := differs(*pair, f"{path.rstrip('.')}[{i}]."))),
            "",
        )
    if wanted in (None, "", [], {}) and actual in (None, "", [], {}):
        return ""
    if str(wanted).strip() == str(actual).strip():
        return ""
    short = " ".join(str(actual).split())
    return f"{path.rstrip('.')} is {short[:80]}{'…' if len(short) > 80 else ''}"
