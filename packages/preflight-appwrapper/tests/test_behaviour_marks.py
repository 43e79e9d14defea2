"""Beside a real API server: what no webhook has judged is not created, and how it is judged later.

No policy of the chart is here: each holds by itself, and test_rights has those.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hooks import serving
from lab import Lab, appwrapper, condition
from leading import leads
from player import bare_pod, job, service
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.core.marks import MARK
from preflight_kube.client.client import Client, KubeError

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

RULES = WrapperRules(mark_key=b"k" * 64)
FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


async def left_alone(lab: Lab, name: str = "w") -> str:
    """The message of the condition that says so."""

    async def there() -> str:
        found = condition(await lab.wrapper(name), "QuotaReserved")
        return found["message"] if found.get("reason") == "NotJudged" else ""

    return str(await lab.until(there, "NotJudged"))


async def mark_of(lab: Lab, name: str = "w") -> str:
    return str((await lab.wrapper(name))["metadata"].get("annotations", {}).get(MARK, ""))


async def write(lab: Lab, value: str | None, name: str = "w", client: Client | None = None) -> None:
    body = {"metadata": {"annotations": {MARK: value}}}
    await (client or lab.client).merge_patch(lab.wrappers(name), body)


async def stored(lab: Lab, client: Client, body: dict[str, Any]) -> None:
    """An API server knows some moments later that a webhook is gone."""

    async def there() -> bool:
        try:
            await client.create(lab.wrappers(), body)
        except KubeError as error:
            if error.status < 500:
                raise
            return False
        return True

    await lab.until(there, body["metadata"]["name"])


async def author(lab: Lab, home: Path) -> Client:
    """Who may change AppWrappers, and create nothing."""
    rules = [
        {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["*"]}
    ]
    return await lab.account(home, rules)


async def test_what_came_while_no_webhook_answered_is_created_once_somebody_who_may_has_it_judged(
    lab: Lab, tmp_path: Path
) -> None:
    async with leads(lab.target, lab.namespace, rules=RULES), await author(lab, tmp_path) as user:
        async with serving(lab, tmp_path / "tls", RULES):
            await lab.wrap(service(), job())
            await lab.running(2)
        stolen = await mark_of(lab)
        unmarked, forged = (appwrapper(bare_pod(), name=name) for name in ("unmarked", "forged"))
        forged["metadata"]["annotations"] = {MARK: stolen}
        await stored(lab, user, unmarked)
        await stored(lab, user, forged)
        assert f"kubectl annotate appwrapper unmarked -n {lab.namespace}" in await left_alone(
            lab, "unmarked"
        )
        await left_alone(lab, "forged")
        await user.delete(lab.wrappers("forged"))
        await lab.gone(lab.wrappers("forged"))
        async with serving(lab, tmp_path / "again", RULES):
            with pytest.raises(KubeError) as error:
                await write(lab, "again", "unmarked", user)
            assert "author may not create pods" in str(error.value)
            # Kueue's, or anybody's who does not ask for it: nobody is judged
            await user.merge_patch(lab.wrappers("unmarked"), {"spec": {"suspend": True}})
            await lab.client.merge_patch(lab.wrappers("unmarked"), {"spec": {"suspend": False}})
            assert await mark_of(lab, "unmarked") == ""
            await write(lab, "again", "unmarked")
            await lab.phase("Running", "unmarked")
            assert len(await lab.running(3)) == 3


async def test_a_good_mark_stays_whatever_is_written_over_it(lab: Lab, tmp_path: Path) -> None:
    async with serving(lab, tmp_path / "tls", RULES), await author(lab, tmp_path) as user:
        await lab.wrap(job())
        good = await mark_of(lab)
        assert good
        for value in ("again", "", None, good[:-1]):
            await write(lab, value, client=user)
            assert await mark_of(lab) == good


async def test_what_another_webhook_adds_after_ours_is_judged_or_denied(
    lab: Lab, tmp_path: Path
) -> None:
    from hooks import Hook
    from preflight_kube.admission.review import AdmissionRequest, Response

    async def adds(request: AdmissionRequest) -> Response:
        if request.name == "probe":  # of nothing: to see whether webhooks are called
            return Response()
        at = "/spec/components/0/template/metadata/labels"
        return Response(patch=[{"op": "add", "path": at, "value": {"added": "later"}}])

    hook = Hook("mutating", f"zz-{lab.namespace}", "/adds", adds)
    async with (
        serving(lab, tmp_path / "tls", RULES, more=[hook]),
        leads(lab.target, lab.namespace, rules=RULES),
    ):
        await lab.wrap(job())
        await lab.running(2)
        [component] = (await lab.wrapper())["spec"]["components"]
        assert component["template"]["metadata"]["labels"] == {"added": "later"}


async def test_a_template_as_kubectl_writes_it_is_the_same_after_it_was_stored(
    lab: Lab, tmp_path: Path
) -> None:
    odd = job()
    odd["metadata"]["creationTimestamp"] = None
    odd["spec"]["template"]["metadata"] = {"creationTimestamp": None}
    odd["spec"]["backoffLimit"] = 1.0
    odd["spec"]["template"]["spec"]["containers"][0]["args"] = ["é", "\u2028", "<&>", "💥"]
    odd["status"] = {}
    async with (
        serving(lab, tmp_path / "tls", RULES),
        leads(lab.target, lab.namespace, rules=RULES),
    ):
        await lab.wrap(odd, bare_pod())
        await lab.running(3)


async def test_the_controller_creates_nothing_in_a_namespace_that_is_left_out_without_any_policy(
    lab: Lab,
) -> None:
    rules = WrapperRules(excluded=frozenset({lab.namespace}))
    async with leads(lab.target, lab.namespace, rules=rules):
        await lab.wrap(bare_pod())
        assert "webhook.excludeNamespaces" in await left_alone(lab)

        await lab.until(lambda: lab.events("NotJudged"), "the Event")
        await lab.delete()
        await lab.gone(lab.wrappers("w"))
    assert not [one for one in lab.history if one.what == "pods"]
