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


def test_a_file_that_was_renamed_has_its_new_name_alone(files: Files, path: Path) -> None:
    Disk().write(path, b"data")
    Disk().rename(path, path.with_name("aside"))
    take_all(files)
    assert [one.name for one in path.parent.iterdir()] == ["aside"]


def test_a_folder_in_the_place_of_a_file_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(2):
        path.mkdir()
        Disk().write(path, b"data")
        assert path.read_bytes() == b"data"
        path.unlink()
    path.mkdir()
    assert Disk().remove(path)
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        f"folder-{i}-file.aside" for i in (1, 2, 3)
    ]


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
