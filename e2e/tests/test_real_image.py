"""The one image with its real tool: on the nodes, or its tests say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from preflight_e2e import __main__ as runner
from preflight_e2e import images
from preflight_e2e.engine import Engine, ImageError

ENGINE = Engine("docker")


def test_where_the_real_image_cannot_be_built_its_tests_are_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ImageError("nccl-tests: no network.")

    monkeypatch.setattr(images, "build_all", fails)
    said: list[str] = []
    told = runner._real_image(ENGINE, lambda _: pytest.fail("loaded"), said.append)
    assert set(told) == {images.REAL_IMAGE_MISSING}
    assert "nccl-tests: no network." in told[images.REAL_IMAGE_MISSING]
    assert "nccl-tests: no network." in said[0]


def test_where_it_is_built_it_is_loaded_and_its_reference_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = images.BuiltImage("preflight-nccl-loopback:dev", Path("x.tar"), 0)
    monkeypatch.setattr(
        images, "build_all", lambda *_, **asked: [built] if asked == {"only": [images.REAL]} else []
    )
    loaded: list[images.BuiltImage] = []
    told = runner._real_image(ENGINE, loaded.append, lambda _: None)
    assert (told, loaded) == ({images.REAL_IMAGE: built.reference}, [built])
