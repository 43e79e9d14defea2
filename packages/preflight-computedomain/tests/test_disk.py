"""What a power failure leaves that takes whatever is not synced."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from inmemory import Files, Paths
from preflight_computedomain.node import atomic_file as disk
from preflight_computedomain.node.atomic_file import Disk


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files()
    monkeypatch.setattr(disk, "os", made)
    return made


@pytest.fixture
def path(files: Files) -> Path:
    folder = cast(Path, Paths.of(files)("/folder"))
    folder.mkdir(exist_ok=True)
    return folder / "file"


def take_all(files: Files) -> None:
    files.power_fails(lambda: False)


def test_a_file_that_was_written_is_there_whole(files: Files, path: Path) -> None:
    for data in (b"the first", b"the second"):
        Disk().write(path, data)
        take_all(files)
        assert path.read_bytes() == data
        assert list(path.parent.iterdir()) == [path]


def test_a_file_that_was_removed_does_not_come_back(files: Files, path: Path) -> None:
    Disk().write(path, b"old")
    assert Disk().remove(path)
    take_all(files)
    assert not path.exists()


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_write_that_fails_leaves_the_file_as_it_was_and_no_other(
    files: Files, path: Path, in_the_middle: bool
) -> None:
    Disk().write(path, b"old")
    files.room, files.in_the_middle = 0, in_the_middle
    with pytest.raises(OSError, match="No space left") as caught:
        Disk().write(path, b"new")
    assert caught.value.filename in (str(path), f"{path}.tmp")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
