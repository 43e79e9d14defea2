"""The mark of a wrapper that admission has judged: its author may create its components. Pure.

An annotation is anybody's to write, and no policy can tell a webhook's from a user's: so it is an
HMAC by a key that the webhook and the controller alone have, over the namespace, the time of
creation and the components' templates. Copied to another wrapper it is none.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import msgspec

from preflight_appwrapper.api.names import PREFIX
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper

MARK: Final = PREFIX + "judged"
NOT_JUDGED: Final = "NotJudged"
"""Reason of a condition and an Event: nothing is created."""
_SKEW: Final = 300
"""Seconds between the webhook's clock and the API server's."""
_TIME: Final = re.compile(r"([0-9]{1,12})\.")


def mark(key: bytes, namespace: str, templates: Iterable[Any], at: datetime) -> str:
    """The annotation's value. Raises :class:`RecursionError` for templates nested too deeply."""
    digest = hashlib.sha256(msgspec.json.encode(list(templates), order="sorted")).hexdigest()
    seconds = int(at.timestamp())
    proof = hmac.digest(key, f"{namespace}/{seconds}/{digest}".encode(), "sha256").hex()
    return f"{seconds}.{proof}"


def is_judged(key: bytes, wrapper: AppWrapper) -> bool:
    """Say whether the wrapper has a mark, which is its own. Never raises."""
    written, created = wrapper.metadata.annotations.get(MARK, ""), wrapper.metadata.created
    match = _TIME.match(written)
    if match is None or created is None or abs(int(match[1]) - created.timestamp()) > _SKEW:
        return False
    at = datetime.fromtimestamp(int(match[1]), created.tzinfo)
    templates = (component.template for component in wrapper.spec.components)
    try:
        wanted = mark(key, wrapper.metadata.namespace, templates, at)
    except (RecursionError, ValueError):
        return False
    return hmac.compare_digest(written.encode(errors="replace"), wanted.encode())


def not_judged(wrapper: AppWrapper, rules: WrapperRules, *, begun: bool = False) -> str:
    """Say why nothing of it may be created, and what to do; empty: it may. ``begun``: it was
    created before, and a policy sees to it that its templates have not changed since.
    """
    namespace, name = wrapper.metadata.namespace, wrapper.metadata.name
    if namespace in rules.excluded:
        return f"namespace {namespace} is among webhook.excludeNamespaces, whose AppWrappers nobody judges; create it in another one."
    if begun or not rules.mark_key or is_judged(rules.mark_key, wrapper):
        return ""
    return (
        "no webhook has judged it: it is from before that was installed, or came while none answered; as somebody who may "
        f"create its components: kubectl annotate appwrapper {name} -n {namespace} --overwrite {MARK}=again"
    )
