"""Images arrive in their order while something else goes on, and who needs one waits for it and for
no more.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from preflight_e2e.engine import ImageError
from preflight_e2e.image_loading import Build, loading
from preflight_e2e.images import BuiltImage

NAMES = ("node:dev", "server:dev", "check:e2e", "large:e2e")


def built(name: str) -> BuiltImage:
    return BuiltImage(name, Path(name), 0)


BUILDS: dict[str, Build] = {name: partial(built, name) for name in NAMES}


def test_values_need_what_they_name_and_whatever_comes_before_it() -> None:
    with loading(BUILDS, lambda _: None) as coming:
        assert coming.before({"checks": [{"image": "check:e2e"}]}) == [
            "node:dev",
            "server:dev",
            "check:e2e",
        ]
        assert coming.before({"image": {"repository": "server"}}) == []


def test_who_needs_the_first_does_not_wait_for_the_others() -> None:
    go_on, loaded = threading.Event(), []

    def load(one: BuiltImage) -> None:
        if one.reference == "large:e2e":
            assert go_on.wait(10)
        loaded.append(one.reference)

    with loading(BUILDS, load) as coming:
        coming.wait(["check:e2e"])
        assert loaded == ["node:dev", "server:dev", "check:e2e"]
        go_on.set()
        coming.wait_for_all()
        assert loaded == [*NAMES]


def test_who_waits_is_told_why_an_image_does_not_come() -> None:
    def fails() -> BuiltImage:
        raise ImageError("no engine")

    with loading({**BUILDS, "check:e2e": fails}, lambda _: None) as coming:
        coming.wait(["server:dev"])
        with pytest.raises(ImageError, match="no engine"):
            coming.wait(["check:e2e"])


def test_the_next_one_is_built_while_one_is_loaded() -> None:
    built_meanwhile = threading.Event()

    def check() -> BuiltImage:
        built_meanwhile.set()
        return built("check:e2e")

    def load(one: BuiltImage) -> None:
        if one.reference == "server:dev":
            assert built_meanwhile.wait(10)

    with loading({**BUILDS, "check:e2e": check}, load) as coming:
        coming.wait_for_all()


def test_what_has_not_begun_at_the_end_is_neither_built_nor_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    begun, over = threading.Event(), threading.Event()
    shutdown = ThreadPoolExecutor.shutdown

    def ending(
        pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False
    ) -> None:
        shutdown(pool, wait=False, cancel_futures=cancel_futures)
        if wait:  # the last one: now nothing can begin
            over.set()

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", ending)

    def build(name: str) -> BuiltImage:
        done.append(name)
        if name == "server:dev":
            begun.set()
            assert over.wait(10)
        return built(name)

    with loading({name: partial(build, name) for name in NAMES}, lambda _: None):
        assert begun.wait(10)
    assert done == ["node:dev", "server:dev"]
