"""What is on the disk, whenever the process ends."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from claimed import CLIQUE, DOMAIN, FACTS, Node, ref, uid
from preflight_computedomain.api import checkpoint
from preflight_computedomain.api.checkpoint import COMPLETED, STARTED, Channel
from preflight_computedomain.api.names import cdi_file
from preflight_computedomain.core.claims import ChannelRequest, Refusal
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.node.host import ChannelMajor
from preflight_computedomain.node.state_dir import CHECKPOINT, document


def request(number: int = 1) -> ChannelRequest:
    return ChannelRequest(ref(number), "channel", DOMAIN, b'{"allocation":{}}')


def prepare(node: Node, number: int = 1) -> Channel | Refusal:
    return node.store().prepare(request(number), {DOMAIN}, CLIQUE)


def consistent(node: Node) -> None:
    """What must hold after every start."""
    entries = node.store().entries()
    done = {key for key, one in entries.items() if one.state == COMPLETED}
    assert len(done) <= 1
    assert node.files() == {cdi_file(key): document(key, node.major) for key in done}


def test_prepare_writes_started_then_the_file_then_completed(tmp_path: Path) -> None:
    words: list[str] = []
    node = Node(tmp_path, step=words.append)
    assert isinstance(prepare(node), Channel)
    assert [word for word in words if word.startswith("rename")] == [
        f"rename {CHECKPOINT}.tmp",
        f"rename {cdi_file(uid(1))}.tmp",
        f"rename {CHECKPOINT}.tmp",
    ]
    # No name of an unfinished file ends as those that the runtime reads.
    assert not [word for word in words if word.startswith("write") and word.endswith(".json")]
    assert node.states() == {uid(1): COMPLETED}
    assert DOMAIN.encode() in bytes(node.store().entries()[uid(1)].devices)
    consistent(node)


def test_the_runtime_may_read_the_cdi_file_and_nobody_else_the_checkpoint(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepare(node)
    assert stat.S_IMODE((node.cdi / cdi_file(uid(1))).stat().st_mode) & 0o400
    assert stat.S_IMODE((node.folder / CHECKPOINT).stat().st_mode) == 0o600


def test_unprepare_removes_the_file_before_the_entry(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepare(node)
    words: list[str] = []
    node.step = words.append
    assert node.store().unprepare(uid(1))
    assert words[0] == f"remove {cdi_file(uid(1))}"
    assert (node.states(), node.files()) == ({}, {})


def test_unprepare_of_what_is_not_there_succeeds_and_writes_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert not node.store().unprepare(uid(1))
    assert not (node.folder / CHECKPOINT).exists()


PREPARE_STEPS = 15
UNPREPARE_STEPS = 8


def test_the_steps_below_are_all_there_are(tmp_path: Path) -> None:
    words: list[str] = []
    node = Node(tmp_path, step=words.append)
    prepare(node)
    assert len(words) == PREPARE_STEPS
    node.store().unprepare(uid(1))
    assert len(words) == PREPARE_STEPS + UNPREPARE_STEPS


KILLED = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    from test_store import PREPARE_STEPS, UNPREPARE_STEPS, Node, prepare, uid

    def ends(at):
        words = []
        def step(word):
            if len(words) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            words.append(word)
        return step

    for what, steps in (("prepare", PREPARE_STEPS), ("unprepare", UNPREPARE_STEPS)):
        for at in range(steps):
            root = Path(sys.argv[1], f"{what}-{at}")
            if what == "unprepare":
                prepare(Node(root))
            if not (child := os.fork()):
                node = Node(root, step=ends(at))
                prepare(node) if what == "prepare" else node.store().unprepare(uid(1))
                os._exit(0)
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, root
""")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each step of each call one node, as a process left it that was killed there."""
    root = tmp_path_factory.mktemp("killed")
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-c", KILLED, str(root)], cwd=here, check=True, timeout=100)
    return root


@pytest.mark.parametrize("next_", ["prepare", "unprepare", "another claim"])
@pytest.mark.parametrize("at", range(PREPARE_STEPS))
def test_killed_in_prepare_the_next_call_ends_as_if_nothing_had_happened(
    killed: Path, tmp_path: Path, at: int, next_: str
) -> None:
    shutil.copytree(killed / f"prepare-{at}", tmp_path, dirs_exist_ok=True)
    finish(Node(tmp_path), next_)


@pytest.mark.parametrize("next_", ["prepare", "unprepare", "another claim"])
@pytest.mark.parametrize("at", range(UNPREPARE_STEPS))
def test_killed_in_unprepare_the_next_call_ends_as_if_nothing_had_happened(
    killed: Path, tmp_path: Path, at: int, next_: str
) -> None:
    shutil.copytree(killed / f"unprepare-{at}", tmp_path, dirs_exist_ok=True)
    finish(Node(tmp_path), next_)


def finish(node: Node, next_: str) -> None:
    node.store().start()
    consistent(node)
    assert list(node.root.rglob("*.tmp")) == []
    if next_ == "prepare":
        assert isinstance(prepare(node), Channel)
        assert node.states() == {uid(1): COMPLETED}
    else:
        node.store().unprepare(uid(1))
        assert node.states() == {}
        if next_ == "another claim":
            assert isinstance(prepare(node, 2), Channel)
            assert node.states() == {uid(2): COMPLETED}
    consistent(node)
    assert list(node.root.rglob("*.tmp")) == []


def test_another_boot_drops_all_claims_and_their_files(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepare(node)
    node.facts = replace(FACTS, boot="boot-2")
    node.store().start()
    assert (node.states(), node.files()) == ({}, {})


def test_a_driver_with_another_major_gets_its_files_made_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepare(node)
    node.major = 240
    node.store().start()
    assert b'"major":240' in node.files()[cdi_file(uid(1))]


@pytest.mark.parametrize("later", [511, 0], ids=["loaded anew", "gone"])
@pytest.mark.parametrize("at", range(PREPARE_STEPS))
def test_whenever_the_driver_changes_no_cdi_file_has_a_number_that_it_does_not_have(
    tmp_path: Path, at: int, later: int
) -> None:
    node, words, proc = Node(tmp_path), list[str](), tmp_path / "proc-devices"

    def load(major: int) -> None:
        line = f"{major} nvidia-caps-imex-channels\n" if major else ""
        proc.write_text(f"Character devices:\n  1 mem\n{line}235 ttyUSB\n\nBlock devices:\n")

    def step(word: str) -> None:
        if len(words) == at:
            load(later)
        words.append(word)

    vars(node)["driver"] = ChannelMajor({"ALT_PROC_DEVICES_PATH": str(proc)})
    load(node.major)
    node.step = step
    with pytest.raises(Unfit, match=r"try again|load the NVIDIA driver"):
        prepare(node)
    assert (node.states(), node.files()) == ({}, {})
    node.major = later or 240
    load(node.major)
    assert isinstance(prepare(node), Channel)
    consistent(node)


def test_a_driver_that_changes_while_a_file_is_made_again_leaves_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    prepare(node)
    (node.cdi / cdi_file(uid(1))).unlink()
    node.step = lambda _: setattr(node, "major", 511)
    with pytest.raises(Unfit, match="try again"):
        node.store().restore(uid(1))
    assert node.files() == {}
    assert node.store().restore(uid(1))
    consistent(node)


def test_folders_in_the_place_of_files_are_moved_aside_and_the_plugin_goes_on(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    given = node.cdi / cdi_file(uid(1))
    for folder in (
        given,
        node.cdi / cdi_file("gone"),
        node.folder / CHECKPOINT,
        node.folder / f"{CHECKPOINT}.tmp",
    ):
        folder.mkdir()
        (folder / "theirs").touch()
    store = node.store()
    store.start()
    assert store.corrupt == 1
    assert len([*node.folder.glob(f"{CHECKPOINT}.corrupt-*/theirs")]) == 1
    assert isinstance(prepare(node), Channel)
    assert node.states() == {uid(1): COMPLETED}
    given.unlink()
    (given / "theirs").mkdir(parents=True)
    assert node.store().restore(uid(1))
    assert given.read_bytes() == document(uid(1), node.major)
    node.store().start()  # nor are those that were moved in the way of the next start
    names = [path.name for path in node.cdi.iterdir() if path.is_dir()]
    assert len(names) == 3
    for name in names:
        assert name.startswith("folder-")
        assert name.endswith(".aside")


def test_folders_in_the_place_of_unfinished_files_are_moved_aside(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for unfinished in (node.folder / CHECKPOINT, node.cdi / cdi_file(uid(1))):
        unfinished.with_name(f"{unfinished.name}.tmp").mkdir()
    assert isinstance(prepare(node), Channel)
    assert node.states() == {uid(1): COMPLETED}


def test_a_start_leaves_other_vendors_files_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for name in ("nvidia.yaml", "k8s.gpu.nvidia.com-claim_x.json"):
        (node.cdi / name).write_text("theirs")
    (node.cdi / f"{cdi_file('gone')}.tmp").write_text("half")
    (node.cdi / cdi_file("gone")).write_text("old")
    node.store().start()
    assert sorted(node.files()) == ["k8s.gpu.nvidia.com-claim_x.json", "nvidia.yaml"]


def test_a_checkpoint_that_becomes_corrupt_while_running_costs_no_claim(tmp_path: Path) -> None:
    node = Node(tmp_path)
    store = node.store()
    store.prepare(request(), {DOMAIN}, CLIQUE)
    (node.folder / CHECKPOINT).write_bytes(b"{")
    said = store.prepare(request(2), {DOMAIN}, CLIQUE)
    assert isinstance(said, Refusal)
    assert said.reason == "channel-in-use"
    assert node.states() == {uid(1): COMPLETED}


def test_claims_of_the_largest_status_that_kubernetes_stores_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "checksum", zlib.crc32)  # its own takes many seconds
    node = Node(tmp_path)
    store, status = node.store(), b'{"a":"%s"}' % (b"x" * 1_500_000)
    store.prepare(replace(request(), status=status), {DOMAIN}, CLIQUE)
    assert store.entries().keys() == {uid(1)}
    assert store.unprepare(uid(1))
    assert store.corrupt == 0


def test_a_corrupt_checkpoint_on_a_full_disk_costs_no_claim(tmp_path: Path) -> None:
    room = True

    def step(word: str) -> None:
        if not room and word == f"sync {CHECKPOINT}.tmp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node = Node(tmp_path, step=step)
    store = node.store()
    store.prepare(request(), {DOMAIN}, CLIQUE)
    (node.folder / CHECKPOINT).write_bytes(b"{")
    room = False
    for of in (store, node.store()):
        with pytest.raises(OSError, match="No space left"):
            of.prepare(request(2), {DOMAIN}, CLIQUE)
    room = True
    for of in (store, node.store()):
        said = of.prepare(request(2), {DOMAIN}, CLIQUE)
        assert isinstance(said, Refusal)
        assert said.reason == "channel-in-use"


def test_what_another_process_wrote_is_seen(tmp_path: Path) -> None:
    node = Node(tmp_path)
    one, other = node.store(), node.store()
    one.prepare(request(1), {DOMAIN}, CLIQUE)
    said = other.prepare(request(2), {DOMAIN}, CLIQUE)
    assert isinstance(said, Refusal)
    one.unprepare(uid(1))
    assert isinstance(other.prepare(request(2), {DOMAIN}, CLIQUE), Channel)
    assert set(one.entries()) == {uid(2)}


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Node]:
    """A node whose CDI folder takes no file."""
    node = Node(tmp_path)
    node.cdi.rmdir()
    node.cdi.write_text("a file where the folder should be")
    yield node
    with suppress(OSError):
        node.cdi.unlink()


def test_a_disk_that_refuses_leaves_a_started_claim_that_can_be_finished_or_undone(
    full: Node,
) -> None:
    with pytest.raises(OSError, match="cdi"):
        prepare(full)
    assert full.states() == {uid(1): STARTED}
    full.cdi.unlink()
    full.cdi.mkdir()
    full.store().start()
    assert isinstance(prepare(full), Channel)


def test_a_file_in_the_place_of_the_cdi_folder_keeps_no_claim_from_ending(full: Node) -> None:
    with suppress(OSError):
        prepare(full)
    assert full.store().unprepare(uid(1))
    assert full.states() == {}
