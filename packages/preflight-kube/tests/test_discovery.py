"""Whether a cluster serves a kind, and where."""

from __future__ import annotations

import pytest
from preflight_kube.client.client import Client
from preflight_kube.runtime.discovery import served, versions
from preflight_testing.plugin import ABSENT, ApiFixture

pytestmark = pytest.mark.anyio


async def test_a_kind_is_found_by_group_and_plural_name(client: Client, api: ApiFixture) -> None:
    assert (
        await served(client, "coordination.k8s.io", "leases")
        == "/apis/coordination.k8s.io/v1/leases"
    )


async def test_what_is_not_served_is_none(client: Client, api: ApiFixture) -> None:
    assert await served(client, ABSENT.split("/")[0], "things") is None
    assert await served(client, "coordination.k8s.io", "things") is None


async def test_all_versions_that_have_a_kind_are_found(client: Client, api: ApiFixture) -> None:
    assert await versions(client, "coordination.k8s.io", "leases") == ("v1",)
    assert await versions(client, "coordination.k8s.io", "things") == ()
    assert await versions(client, ABSENT.split("/")[0], "things") == ()
