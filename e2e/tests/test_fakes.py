"""The fakes behave: what dcgmi prints and how it exits, and what NVML shows."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.fakes import FAKES, NVML, build_nvml
from preflight_testing.matrix.facts import node_json, uuids

MINE = uuids("node-a")


def engine_answers(answers: dict[str, Any]) -> Iterator[str]:
    """A one-line-a-call engine that answers by what is asked."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, connection.makefile("rw") as stream:
                stream.write(json.dumps(answers[json.loads(stream.readline())["do"]]) + "\n")
                stream.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


FAULT = {"text": "bad", "error_id": 52, "severity": 2, "category": 10}


@pytest.fixture
def engine() -> Iterator[str]:
    results = {"software": {"0": {"problems": []}}, "memory": {"0": {"problems": [FAULT]}}}
    gpus = [{"id": 0, "name": "H100", "pci": "0:1B", "uuid": MINE[7]}]
    yield from engine_answers(
        {
            "diag": {"rc": 205, "results": results, "serials": {"0": "1650522000000"}},
            "discovery": {"rc": 0, "gpus": gpus},
            "version": {"rc": 0, "version": "4.4.2"},
        }
    )


def run(tool: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FAKES / "bin" / tool), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environ}
    )


def test_dcgmi_4_prints_the_document_of_its_generation(engine: str) -> None:
    done = run("dcgmi", "diag", "-r", "2", "--host", engine, "-i", MINE[7], "-j")
    document = json.loads(done.stdout)["DCGM Diagnostic"]
    assert done.returncode == 205
    [memory] = [t for c in document["test_categories"] for t in c["tests"] if t["name"] == "memory"]
    assert memory["results"][0]["entity_id"] == 0
    assert memory["results"][0]["warnings"][0]["error_severity"] == 2


def test_dcgmi_3_prints_the_older_one_and_takes_no_uuid(engine: str) -> None:
    done = run("dcgmi3", "diag", "-r", "2", "--host", engine, "-i", "0", "-j")
    document = json.loads(done.stdout)["DCGM GPU Diagnostic"]
    [memory] = [
        t for c in document["test_categories"] for t in c["tests"] if t["name"] == "GPU Memory"
    ]
    assert memory["results"][0] is None
    assert memory["results"][1]["gpu_id"] == "0"
    assert run("dcgmi3", "diag", "-r", "2", "--host", engine, "-i", MINE[7], "-j").returncode == 255


PLAYED = ("2.4.7", "3.1.8", "3.2.6", "3.3.1", "3.3.9", "4.0.0", "4.4.2", "4.5.0", "4.6.0")


@pytest.mark.parametrize("version", PLAYED)
def test_dcgmi_prints_as_the_version_that_it_plays(
    engine: str, tmp_path: Path, version: str
) -> None:
    file = tmp_path / "node.json"
    file.write_text(json.dumps(node_json("node-a", {"engine": {"clients": {"dcgmi": version}}})))
    ids = MINE[7] if version >= "4" else "0"
    done = run(
        "dcgmi", "diag", "-r", "2", "--host", engine, "-i", ids, "-j", FAKE_NODE_JSON=str(file)
    )
    document = json.loads(done.stdout)
    [body] = [
        document[root] for root in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if root in document
    ]
    listed = [
        t
        for c in body["test_categories"]
        for t in c["tests"]
        if t["name"] in {"memory", "GPU Memory"}
    ]
    [row] = [row for row in listed[0]["results"] if row]
    assert row["status"] == "Fail"
    assert ("gpu_ids" in row, "gpu_id" in row, "entity_id" in row) == (
        version < "3.3",
        "3.3" <= version < "4",
        version >= "4",
    )
    assert isinstance(row["warnings"], str) == (version < "3.3")
    assert ("error_id" in row) == (version == "3.2.6")
    assert bool(listed[0].get("test_summary", {}).get("warnings")) == (version >= "4.5")
    assert ("1650522000000" in done.stdout) == (version >= "3.3")


@pytest.mark.parametrize("status", [0, 205, 217, 226, 237, 238, 244, 245])
def test_a_diagnostic_that_could_not_run_is_a_document_whatever_its_status(status: int) -> None:
    for address in engine_answers({"diag": {"rc": status, "said": "something"}}):
        done = run("dcgmi", "diag", "-r", "1", "--host", address, "-i", MINE[0], "-j")
        assert done.returncode == status
        assert "something" in json.loads(done.stdout)["DCGM Diagnostic"]["runtime_error"]


def test_dcgmi_lists_the_engine_s_gpus(engine: str) -> None:
    done = run("dcgmi", "discovery", "-l", "--host", engine)
    assert f"Device UUID: {MINE[7]}" in done.stdout


def test_dcgmi_without_an_engine_exits_235() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert run("dcgmi", "discovery", "-l", "--host", f"127.0.0.1:{port}").returncode == 235


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(node_json("node-a", {})))
    return path


@pytest.mark.parametrize(
    "given",
    [
        {"NVIDIA_VISIBLE_DEVICES": f"{MINE[5]},{MINE[4]}"},
        {"FAKE_GPU_5": MINE[5], "FAKE_GPU_4": MINE[4]},
    ],
)
def test_nvidia_smi_shows_the_gpus_that_the_container_was_given(
    node: Path, given: dict[str, str]
) -> None:
    environ = {"FAKE_NODE_JSON": str(node), **given}
    done = run("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader", **environ)
    assert done.stdout.splitlines() == [f"0, {MINE[4]}", f"1, {MINE[5]}"]


@pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler for the NVML stand-in",
)
def test_nvml_shows_the_same_however_the_facts_are_indented(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODE_JSON", str(node))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", ",".join(MINE[4:6]))  # by number
    for index in (6, 7):  # and by claims
        monkeypatch.setenv(f"FAKE_GPU_{index}", MINE[index])
    library = tmp_path / "libnvidia-ml.so.1"
    build_nvml(NVML, library)
    # Each copy is loaded by itself, and reads the facts at its start.
    for indent in (None, 2):
        node.write_text(json.dumps(node_json("node-a", {}), indent=indent))
        copy = Path(shutil.copy(library, tmp_path / f"{indent}.so"))
        assert shown(copy) == MINE[4:]


def shown(library: Path) -> list[str]:
    """UUIDs of the GPUs that NVML shows."""
    nvml = ctypes.CDLL(str(library))
    assert nvml.nvmlInit_v2() == 0
    count = ctypes.c_uint()
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    seen = []
    for index in range(count.value):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
        assert nvml.nvmlDeviceGetUUID(handle, text, 96) == 0
        seen.append(text.value.decode())
    return seen


def reduce(
    tmp_path: Path, changes: dict[str, Any], *arguments: str, gpus: int = 8, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the fake nccl-tests on the first ``gpus`` GPUs of a node with ``changes``."""
    path = tmp_path / "node.json"
    path.write_text(json.dumps(node_json("node-a", {"nccl": changes})))
    given = {
        "FAKE_NODE_JSON": str(path),
        "NVIDIA_VISIBLE_DEVICES": ",".join(MINE[:gpus]),
        **environ,
    }
    return run(
        "all_reduce_perf", "-b", "1G", "-e", "1G", *(arguments or ("-g", str(gpus))), **given
    )


def rows(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    return [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]


@pytest.mark.parametrize(("tests", "words"), [("2.11.0", 12), ("2.13.11", 13), ("2.17.6", 13)])
def test_nccl_tests_prints_the_row_of_its_era(tmp_path: Path, tests: str, words: int) -> None:
    done = reduce(tmp_path, {"tests": tests})
    assert (done.returncode, [len(row) for row in rows(done)]) == (0, [words])
    assert done.stdout.startswith("# nccl-tests version") == (tests == "2.17.6")


@pytest.mark.parametrize(("tests", "status"), [("2.13.11", 1), ("2.17.6", 7)])
def test_nccl_tests_exits_for_wrong_data_as_its_era_does(
    tmp_path: Path, tests: str, status: int
) -> None:
    done = reduce(tmp_path, {"tests": tests, "wrong": [{"gpu": 1, "elements": 4}]})
    assert done.returncode == status
    assert rows(done)[0][8] == "4"
    assert "# Out of bounds values : 8 FAILED" in done.stdout


def test_nccl_tests_takes_the_gpus_of_claims(tmp_path: Path) -> None:
    claimed = {"FAKE_GPU_0": MINE[0], "FAKE_GPU_1": MINE[1]}
    assert reduce(tmp_path, {}, "-g", "2", gpus=0, **claimed).returncode == 0


@pytest.mark.parametrize(
    ("changes", "least", "most"),
    [({}, 460, 467), ({"nvls": 0}, 365, 371), ({"ports": [{"gpu": 3, "gbps": 120}]}, 115, 118)],
)
def test_a_collective_is_as_fast_as_its_slowest_part(
    tmp_path: Path, changes: dict[str, Any], least: float, most: float
) -> None:
    assert least < float(rows(reduce(tmp_path, changes))[0][7]) < most


def test_only_rings_that_cross_a_slow_link_are_slow(tmp_path: Path) -> None:
    changes = {"pairs": [{"gpus": [1, 2], "gbps": 50}]}
    assert float(rows(reduce(tmp_path, changes))[0][7]) < 51
    pair = reduce(tmp_path, changes, "-g", "2", CUDA_VISIBLE_DEVICES=f"{MINE[0]},{MINE[1]}")
    assert float(rows(pair)[0][7]) > 50


def test_more_gpus_than_cuda_finds_are_refused(tmp_path: Path) -> None:
    done = reduce(tmp_path, {"visible": 7})
    assert done.returncode == 5
    assert "Invalid number of GPUs: 8 requested but only 7 were found." in done.stderr
