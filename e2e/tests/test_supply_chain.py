"""Audit, SBOMs and the pinned builder, without the network."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Iterator
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Never

import pytest
from preflight_e2e import supply_chain
from preflight_e2e.images import COMPONENTS, ROOT, ImageTable
from preflight_e2e.json_server import JsonHandler

LOCK = {
    (package["name"], package["version"]): package
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    if "version" in package
}


class Advisories(ThreadingHTTPServer):
    """An OSV service that knows one vulnerability, or none."""

    def __init__(self, bad: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.bad, self.asked = bad, set[str]()
        self.deaf = False
        """To questions about commits."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class _Answers(JsonHandler):
    server: Advisories

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        names = [query.get("commit") or query["package"]["name"] for query in queries]
        if self.server.deaf and "commit" in queries[0]:
            self.send_error(503)
            return
        self.server.asked |= set(names)
        known = {"vulns": [{"id": "PYSEC-0000-1", "modified": "2024-01-01T00:00:00Z"}]}
        self.answer({"results": [known if name == self.server.bad else {} for name in names]})

    def do_GET(self) -> None:
        ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999"}]}]
        affected = [{"package": {"name": self.server.bad, "ecosystem": "PyPI"}, "ranges": ranges}]
        self.answer(
            {
                "id": "PYSEC-0000-1",
                "modified": "2024-01-01T00:00:00Z",
                "summary": "it is bad",
                "affected": affected,
            }
        )


BOMS = cache(supply_chain.bom)
"""An image's document, asked of uv once."""


@pytest.fixture
def advisories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Advisories]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv(supply_chain.REQUIRED, raising=False)
    monkeypatch.setattr(supply_chain, "bom", BOMS)
    with Advisories() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_every_package_of_every_image_is_asked_about(
    advisories: Advisories, capsys: pytest.CaptureFixture[str]
) -> None:
    assert supply_chain.audit(advisories.url) == 0
    assert advisories.asked >= {
        name for component in COMPONENTS for name in supply_chain.packages(component)
    }
    assert advisories.asked >= {
        "torch",
        "nvidia-nccl-cu13",
        "nvidia-cuda-runtime",
        "nvidia-cuda-nvcc",
        *(source.commit for component in COMPONENTS for source in component.sources),
    }
    assert "compiled sources, 0 with an advisory" in capsys.readouterr().out


def test_an_advisory_about_a_compiled_source_fails_and_names_its_image(
    advisories: Advisories, capsys: pytest.CaptureFixture[str]
) -> None:
    [image] = [component for component in COMPONENTS if component.image == "preflight-dcgm-diag"]
    [source] = [source for source in image.sources if source.name == "dcgm-4"]
    advisories.bad = source.commit
    assert supply_chain.audit(advisories.url) == 1
    assert f"dcgm-4 {source.version}: PYSEC-0000-1; in {image.image}" in capsys.readouterr().out


def test_a_known_vulnerability_fails_and_names_its_images_though_sources_could_not_be_asked_about(
    advisories: Advisories, capsys: pytest.CaptureFixture[str]
) -> None:
    advisories.bad, advisories.deaf = "uvicorn", True
    assert supply_chain.audit(advisories.url) == 1
    told = capsys.readouterr()
    line = next(line for line in told.out.splitlines() if line.startswith("uvicorn "))
    said, _, images = line.rpartition("; in ")
    assert said.endswith("PYSEC-0000-1 it is bad; fixed in 999")
    assert {"preflight-webhook", "preflight-mnnvl"} <= {*images.split(", ")}
    assert "preflight-dcgm-diag" not in images
    assert "0 compiled sources" in told.out
    assert "could not be asked about compiled sources: HTTP Error 503" in told.err


@pytest.mark.parametrize(("required", "status"), [("", 0), ("0", 0), ("1", 1)])
def test_advisories_that_cannot_be_asked_are_said_in_one_sentence_and_fail_only_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], required: str, status: int
) -> None:
    def fails(*_: object, **__: object) -> Never:
        raise supply_chain.SupplyError("uv audit ended with status 2")

    monkeypatch.setenv(supply_chain.REQUIRED, required)
    monkeypatch.setenv("CI", "true")  # which alone asks for nothing
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    if not status:
        monkeypatch.setattr(supply_chain, "_uv", fails)
    assert supply_chain.audit("http://127.0.0.1:9/") == status
    [sentence] = capsys.readouterr().err.splitlines()
    assert sentence.startswith("audit: the advisories could not be asked: ")


@pytest.mark.component  # runs uv
@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.image)
def test_an_sbom_has_each_locked_package_with_the_hashes_of_the_lock(component: ImageTable) -> None:
    document = BOMS(component)
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == (
        "CycloneDX",
        component.image,
    )
    ours = {Path(component.package).name, "preflight-proto", "preflight-kube"}
    inside = {
        part["name"]: part
        for part in document["components"]
        if part["name"] not in ours and part.get("purl", "pkg:pypi/").startswith("pkg:pypi/")
    }
    assert "msgspec" in inside
    for name, part in inside.items():
        package = LOCK[name, part["version"]]
        artefacts = [
            *package.get("wheels", ()),
            *([package["sdist"]] if "sdist" in package else []),
        ]
        listed = {
            f"sha256:{one['content']}"
            for reference in part["externalReferences"]
            for one in reference["hashes"]
        }
        assert listed == {artefact["hash"] for artefact in artefacts}
    assert not {"pytest", "mypy", "hypothesis"} & set(inside)


@pytest.mark.component  # runs uv
def test_an_sbom_has_the_tool_that_the_image_is_for_with_version_source_and_license() -> None:
    inside = {
        component.image: {part["name"]: part for part in BOMS(component)["components"]}
        for component in COMPONENTS
    }
    for component in COMPONENTS:
        parts = inside[component.image]
        assert (
            parts[component.base.partition(":")[0]]["version"] == component.base.partition(":")[2]
        )
        for source in component.sources:
            part = parts[source.name]
            assert part["version"] == source.version
            assert part["purl"].endswith(f"@{source.commit}")
            assert part["licenses"] == [{"license": {"id": source.license}}]
            assert part["externalReferences"] == [{"type": "vcs", "url": source.repository}]
    dcgm = inside["preflight-dcgm-diag"]
    assert {"dcgm-4", "dcgm-3", "libevent-2.1-7", "libjsoncpp25", "libyaml-cpp0.7"} <= {*dcgm}
    loopback = inside["preflight-nccl-loopback"]
    assert {"nccl-tests", "nvidia-nccl-cu13", "nvidia-cuda-runtime"} <= {*loopback}
    assert "nvidia-cuda-nvcc" not in loopback  # compiles, and stays behind
    allreduce = inside["preflight-nccl-allreduce"]
    assert {"torch", "nvidia-nccl-cu13", "nvidia-cublas"} <= {*allreduce}
    assert allreduce["nvidia-nccl-cu13"]["licenses"] == loopback["nvidia-nccl-cu13"]["licenses"]
    assert not {"torch", "dcgm-4"} & {*inside["preflight-webhook"]}


def test_the_same_lock_gives_the_same_sboms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [COMPONENTS[0], COMPONENTS[-1]]
    monkeypatch.setattr(supply_chain, "COMPONENTS", some)
    first = [path.read_bytes() for path in supply_chain.write_boms(tmp_path / "one")]
    assert first == [path.read_bytes() for path in supply_chain.write_boms(tmp_path / "two")]
    assert [path.name for path in sorted((tmp_path / "one").iterdir())] == sorted(
        f"{component.image}.cdx.json" for component in some
    )


def test_every_image_is_built_by_the_locked_uv_and_by_hash() -> None:
    assert (ROOT / "builder.txt").read_text() == supply_chain.builder()
    assert supply_chain.builder().count("--hash=sha256:") > 10
    for component in COMPONENTS:
        text = component.dockerfile(ROOT).read_text()
        assert re.search(r"pip install [^\n]*--require-hashes -r /tmp/builder.txt", text), component
        assert text.count("pip install") == 1
