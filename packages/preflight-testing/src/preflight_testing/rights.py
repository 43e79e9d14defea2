"""Rights that were used, of an API server's audit log, against rights that the charts grant:
neither may be more.

A right is (API group, resource or resource/subresource, verb). What has no resource (discovery,
health) is everybody's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .helm import Object

AUDIT_LOG: Final = "PREFLIGHT_AUDIT_LOG"
"""Names the API server's audit log, for the tests that run on a cluster."""

Right = tuple[str, str, str]

NOT_SENT: Final[Mapping[Right, str]] = {
    ("", "configmaps", "delete"): (
        "asked for by the admission plug-in OwnerReferencesPermissionEnforcement where the owners of a record change; "
        "it is not a request of its own, so no audit log has it"
    ),
}
"""Rights that are used although no request shows it, and who uses them."""


@dataclass
class Rights:
    """What one user was allowed (``used``) and what it was refused for want of a right
    (``refused``).
    """

    used: set[Right] = field(default_factory=set)
    refused: set[Right] = field(default_factory=set)


def lines(log: Path) -> Iterator[str]:
    """Of an API server's audit log, the oldest first. At 100 MB kube-apiserver renames it to
    NAME-TIME.log and begins a new one.
    """
    for part in (*sorted(log.parent.glob(f"{log.stem}-*{log.suffix}")), log):
        with part.open(encoding="utf-8") as opened:
            yield from opened


def read(lines: Iterable[str], agent: str = "") -> dict[str, Rights]:
    """By user name, from the lines of an audit log (one JSON object each; a last one may be cut
    off).

    ``agent``: what their User-Agent begins with; tests act in the names of our accounts, too.
    """
    by_user: dict[str, Rights] = {}
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        about = event.get("objectRef")
        user = event.get("user", {}).get("username")  # none where the server did not know who asked
        if about is None or user is None or not event.get("userAgent", "").startswith(agent):
            continue
        resource = "/".join(filter(None, (about.get("resource"), about.get("subresource"))))
        right = (about.get("apiGroup", ""), resource, event["verb"])
        mine = by_user.setdefault(user, Rights())
        allowed = event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow"
        (mine.used if allowed else mine.refused).add(right)
    return by_user


def together(every: Iterable[Rights]) -> Rights:
    """The union of what several have done."""
    total = Rights()
    for rights in every:
        total.used |= rights.used
        total.refused |= rights.refused
    return total


def granted(objects: Iterable[Object]) -> dict[str, set[Right]]:
    """By user name, from the accounts, roles and bindings of a rendered chart; an account without
    any role has no right.
    """
    every = list(objects)
    rules = {
        (o["kind"], o["metadata"]["name"]): list(_rights(o["rules"]))
        for o in every
        if o["kind"] in {"ClusterRole", "Role"}
    }
    by_user: dict[str, set[Right]] = {
        f"system:serviceaccount:{o['metadata']['namespace']}:{o['metadata']['name']}": set()
        for o in every
        if o["kind"] == "ServiceAccount"
    }
    for binding in every:
        if binding["kind"] not in {"ClusterRoleBinding", "RoleBinding"}:
            continue
        for subject in binding["subjects"]:
            user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
            role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
            by_user.setdefault(user, set()).update(rules[role])
    return by_user


def _rights(rules: Iterable[dict[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def compared(used: Mapping[str, Rights], allowed: Mapping[str, set[Right]]) -> list[str]:
    """A sentence for each user's right that is granted and was not used, and for each that it asked
    for in vain.
    """
    sentences = []
    for user, rights in sorted(allowed.items()):
        mine = used.get(user, Rights())
        sentences += [
            f"{user}: may {_described(right)}, and never did."
            for right in sorted(rights - mine.used - NOT_SENT.keys())
        ]
        # What is granted is refused while a release is taken away: its rights go first.
        sentences += [
            f"{user}: tried to {_described(right)}, and may not."
            for right in sorted(mine.refused - rights)
        ]
        sentences += [
            f"{user}: did {_described(right)}, by a right that is not the chart's."
            for right in sorted(mine.used - rights)
        ]
    return sentences


def _described(right: Right) -> str:
    group, resource, verb = right
    return f"{verb} {resource}{'.' + group if group else ''}"
