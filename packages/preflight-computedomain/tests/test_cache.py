"""Answers of the API server that are newer than the mirror."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from preflight_computedomain.api.types import ClaimTemplate, Metadata
from preflight_computedomain.controller.cache import TRUSTED, Cache
from preflight_kube.client.client import Client

PLACE = ("team-a", "channel")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def template(version: int, uid: str = "u-1") -> ClaimTemplate:
    namespace, name = PLACE
    return ClaimTemplate(
        metadata=Metadata(name=name, namespace=namespace, uid=uid, resource_version=str(version))
    )


def cache(clock: Clock) -> Cache[ClaimTemplate]:
    client = cast(Client, SimpleNamespace(clock=clock))
    return Cache(client, "/a/templates", ClaimTemplate, lambda _: None, {})


def mirrored(made: Cache[Any], item: ClaimTemplate) -> None:
    made.mirror._put(item.metadata.uid, item)


def test_an_answer_is_believed_until_the_mirror_shows_as_much() -> None:
    made = cache(Clock())
    mirrored(made, template(9))
    made.answered(template(10))
    assert made.get(PLACE) == template(10)
    mirrored(made, template(11))
    assert made.get(PLACE) == template(11)


def test_what_was_created_is_there_before_the_mirror_has_it_and_no_longer_than_it_is_trusted() -> (
    None
):
    clock = Clock()
    made = cache(clock)
    made.answered(template(10))
    assert made.get(PLACE) == template(10)
    clock.now += TRUSTED
    assert made.get(PLACE) is None


def test_what_is_gone_is_not_there_though_the_mirror_has_it_but_another_of_its_name_is() -> None:
    made = cache(Clock())
    mirrored(made, template(9))
    made.gone(PLACE, "u-1")
    assert made.get(PLACE) is None
    made.mirror._remove("u-1", None)
    mirrored(made, template(12, "u-2"))
    assert made.get(PLACE) == template(12, "u-2")


def test_an_answer_goes_with_its_object() -> None:
    made = cache(Clock())
    mirrored(made, template(9))
    made.answered(template(10))
    made.mirror._remove("u-1", None)
    assert made.get(PLACE) is None


def test_an_answer_about_the_next_of_its_name_outlives_the_one_before() -> None:
    made = cache(Clock())
    mirrored(made, template(9))
    made.answered(template(12, "u-2"))
    made.mirror._remove("u-1", None)
    assert made.get(PLACE) == template(12, "u-2")
