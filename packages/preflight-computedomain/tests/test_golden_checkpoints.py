"""Checkpoints as files: of both versions, of later and earlier drivers, and broken ones. Each was
made with a checksum of its own making.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from claimed import Node, claim, ref, uid
from preflight_computedomain.api.checkpoint import ABORTED, COMPLETED, decode
from preflight_computedomain.api.names import cdi_file
from preflight_computedomain.node.prepare import ClaimAnswer
from preflight_computedomain.node.state_dir import CHECKPOINT, MAX_BYTES, document

GOLDEN = Path(__file__).parent / "golden"
READ = ("v1", "v2", "both", "unknown-field", "without-boot")
BROKEN = ("wrong-digit", "cut", "empty")


def started(folder: Path, name: str) -> Node:
    """A node whose plugin has started on the file ``name``."""
    node = Node(folder)
    (node.folder / CHECKPOINT).write_bytes((GOLDEN / f"{name}.json").read_bytes())
    node.store().start()
    return node


def test_every_file_is_tried_here() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {*READ, *BROKEN, "aborted"}


@pytest.mark.parametrize("name", READ)
def test_a_prepared_claim_is_taken_over_with_its_file(tmp_path: Path, name: str) -> None:
    node = started(tmp_path, name)
    assert node.states() == {uid(1): COMPLETED}
    assert node.files() == {cdi_file(uid(1)): document(uid(1), node.major)}
    assert list(node.folder.glob(f"{CHECKPOINT}.corrupt-*")) == []
    assert decode((node.folder / CHECKPOINT).read_bytes()).boot == "boot-1"


@pytest.mark.parametrize("name", READ)
@pytest.mark.anyio
async def test_a_claim_that_another_driver_has_prepared_is_answered_with_its_devices_and_can_be_undone(
    tmp_path: Path, name: str
) -> None:
    node = started(tmp_path, name)
    page = node.page()
    given = (await page.prepare([ref()]))[uid(1)]
    assert given == ClaimAnswer(("channel",), "node-1")
    assert node.cluster.asked == []
    await page.unprepare([ref()])
    assert (node.states(), node.files()) == ({}, {})


@pytest.mark.anyio
async def test_an_aborted_claim_of_long_ago_is_prepared_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    node = started(tmp_path, "aborted")
    assert node.states() == {uid(1): ABORTED}
    node.cluster.add(ref(), claim(ref()))
    assert (await node.page().prepare([ref()]))[uid(1)].error == ""
    assert node.states() == {uid(1): COMPLETED}


@pytest.mark.parametrize(
    "content",
    [
        *(pytest.param((GOLDEN / f"{name}.json").read_bytes(), id=name) for name in BROKEN),
        pytest.param(b"\xff" * 100, id="no-json"),
        pytest.param(b" " * (MAX_BYTES + 1), id="too-large"),
    ],
)
def test_a_broken_one_is_kept_aside_and_the_node_has_a_driver(
    tmp_path: Path, content: bytes
) -> None:
    node = Node(tmp_path)
    (node.folder / CHECKPOINT).write_bytes(content)
    (node.cdi / cdi_file(uid(9))).write_text("of a claim that nobody knows any more")
    store = node.store()
    store.start()
    assert store.corrupt == 1
    [aside] = node.folder.glob(f"{CHECKPOINT}.corrupt-*")
    assert aside.read_bytes() == content
    assert (node.states(), node.files()) == ({}, {})


@pytest.mark.anyio
async def test_a_claim_whose_containers_run_is_known_by_its_cdi_file_when_the_checkpoint_is_broken(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    for number in (1, 2):
        node.cluster.add(ref(number))
    await node.page().prepare([ref()])
    files = node.files()
    (node.folder / CHECKPOINT).write_bytes((GOLDEN / "cut.json").read_bytes())
    page = node.page()
    await page.start()
    assert (node.states(), node.files()) == ({uid(1): COMPLETED}, files)
    assert await page.mend() == ()
    refused = (await node.page().prepare([ref(2)]))[uid(2)].error
    assert f"prepared for claim of an unknown name ({uid(1)})" in refused
    # Asked for in a new sandbox it is given again; no request named is every request's.
    given = (await page.prepare([ref()]))[uid(1)]
    assert given == ClaimAnswer((), "node-1")
    assert (await page.unprepare([ref()]))[uid(1)].error == ""
    assert (await page.prepare([ref(2)]))[uid(2)].error == ""
    assert node.states() == {uid(2): COMPLETED}


def test_cdi_files_that_cannot_be_one_claims_are_not_taken_for_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (node.folder / CHECKPOINT).write_bytes(b"{")
    (node.cdi / cdi_file(uid(1))).write_bytes(document(uid(1), node.major + 1))
    for number in (2, 3):
        (node.cdi / cdi_file(uid(number))).write_bytes(document(uid(number), node.major))
    node.store().start()
    assert (node.states(), node.files()) == ({}, {})
