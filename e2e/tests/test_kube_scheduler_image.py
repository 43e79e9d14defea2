"""The image of the cluster's own kube-scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from preflight_e2e import kube_scheduler
from preflight_e2e.engine import Engine, ImageError
from preflight_testing.apiserver import ASSETS


@dataclass(frozen=True)
class Recorded(Engine):
    name: str = "recorded"
    contexts: list[list[str]] = field(default_factory=list)

    def build(
        self,
        dockerfile: Path,
        context: Path,
        tag: str,
        args: Mapping[str, str],
        named: Mapping[str, Path] | None = None,
        labels: Mapping[str, str] | None = None,
        *,
        created: int | None = None,
    ) -> None:
        self.contexts.append(sorted(one.name for one in context.iterdir()))

    def save(self, tag: str, archive: Path) -> None:
        archive.write_text(tag)


def test_the_image_is_that_program_alone_and_built_again_when_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ASSETS, str(tmp_path))
    program, cache, engine = tmp_path / "kube-scheduler", tmp_path / "cache", Recorded()
    program.write_text("1.36")
    (tmp_path / "etcd").write_text("not this one")
    first = kube_scheduler.build(engine, cache=cache)
    assert (first.reference, first.archive.read_text()) == (kube_scheduler.IMAGE,) * 2
    assert kube_scheduler.build(engine, cache=cache).archive == first.archive
    assert engine.contexts == [["kube-scheduler"]]
    program.write_text("1.37")
    second = kube_scheduler.build(engine, cache=cache)
    assert list(cache.iterdir()) == [second.archive]
    assert second.archive != first.archive


def test_where_there_is_no_kube_scheduler_one_sentence_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ASSETS, raising=False)
    with pytest.raises(ImageError, match=f"{ASSETS} names no folder with kube-scheduler"):
        kube_scheduler.build(Recorded())
    monkeypatch.setenv(ASSETS, str(tmp_path))
    with pytest.raises(ImageError, match=str(tmp_path)):
        kube_scheduler.build(Recorded())
