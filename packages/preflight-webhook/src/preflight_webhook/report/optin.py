"""Whether the API server asks the webhook about the pods of a namespace, as the chart's webhook
configuration selects them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from preflight_proto import names

__all__ = ["EXCLUDED", "Lists", "OptIn", "lists_of", "opt_in"]

EXCLUDED: Final = ("nvsentinel", "kube-system", "kube-public", "kube-node-lease")
"""The chart's default for ``excludeNamespaces``."""
_ALWAYS: Final = "kube-system"
_NAME: Final = "kubernetes.io/metadata.name"
_ENABLED: Final = names.NAMESPACE_ENABLED
_DISABLED: Final = "disabled"


class Lists(NamedTuple):
    """The chart's ``namespaces`` and ``excludeNamespaces``, and the namespace of its release where
    that is known.
    """

    namespaces: tuple[str, ...] = ()
    excluded: tuple[str, ...] = EXCLUDED
    release: str = ""


class OptIn(NamedTuple):
    """``asked``: yes, no, or unknown; ``why``: one sentence, with what to do where something can be
    done.
    """

    asked: Literal["yes", "no", "unknown"]
    why: str


def opt_in(namespace: str, labels: Mapping[str, str] | None, lists: Lists | None) -> OptIn:
    """``labels``: of the namespace, None where they are not known; ``lists``: of the chart, None
    where they are not known.
    """
    known = lists or Lists(excluded=())
    how = f"kubectl label namespace {namespace} {names.NAMESPACE_LABEL}={_ENABLED}"
    if namespace == _ALWAYS:
        return OptIn(
            "no",
            f"namespace {namespace} is never asked about, whatever its labels say; run GPU pods elsewhere",
        )
    if known.release and namespace == known.release:
        return OptIn(
            "no",
            f"namespace {namespace} is the release's own, which is never asked about; run GPU pods elsewhere",
        )
    if namespace in known.excluded:
        return OptIn(
            "no",
            f"namespace {namespace} is in excludeNamespaces of the chart, which wins over its labels; take it out of the list, or run GPU pods elsewhere",
        )
    label = None if labels is None else labels.get(names.NAMESPACE_LABEL, "")
    if label == _ENABLED:
        return OptIn(
            "yes", f"namespace {namespace} has the label {names.NAMESPACE_LABEL}={_ENABLED}"
        )
    if label == _DISABLED:
        return OptIn(
            "no",
            f"namespace {namespace} has the label {names.NAMESPACE_LABEL}={_DISABLED}; opt it in by `{how} --overwrite`",
        )
    if label is not None and namespace in known.namespaces:
        return OptIn("yes", f"namespace {namespace} is in `namespaces` of the chart")
    if label is None and namespace in known.namespaces:
        return OptIn(
            "yes",
            f"namespace {namespace} is in `namespaces` of the chart; only its label {names.NAMESPACE_LABEL}={_DISABLED} would take it out",
        )
    if label is None:
        return OptIn(
            "unknown",
            f"only if namespace {namespace} is opted in, which is not known here; opt it in by `{how}`, and give its Namespace with -f to find out",
        )
    if lists is None:
        return OptIn(
            "unknown",
            f"namespace {namespace} does not have the label {names.NAMESPACE_LABEL}={_ENABLED}, so only if it is in `namespaces` of the chart; opt it in by `{how}`",
        )
    value = (
        f'its label {names.NAMESPACE_LABEL} is "{label}"'
        if label
        else f"it does not have the label {names.NAMESPACE_LABEL}={_ENABLED}"
    )
    return OptIn(
        "no",
        f"namespace {namespace} is not opted in: {value}, and it is not in `namespaces` of the chart; opt it in by `{how}`",
    )


def lists_of(configuration: Mapping[str, Any]) -> Lists:
    """What a MutatingWebhookConfiguration of the chart selects namespaces by."""
    namespaces: dict[str, None] = {}
    excluded: dict[str, None] = {}
    release = ""
    for entry in _maps(configuration.get("webhooks")):
        service = (entry.get("clientConfig") or {}).get("service") or {}
        release = str(service.get("namespace") or release)
        for term in _maps((entry.get("namespaceSelector") or {}).get("matchExpressions")):
            if term.get("key") == _NAME:
                into = namespaces if term.get("operator") == "In" else excluded
                into.update(dict.fromkeys(str(name) for name in term.get("values") or ()))
    return Lists(tuple(namespaces), tuple(excluded), release)


def _maps(value: Any) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
