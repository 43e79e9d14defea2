"""The real DCGM without a GPU: NVIDIA's engine, diagnostic and dcgmi, and DCGM's own NVML for
tests, compiled from their source at the commit that the image's client is of.

`nox -s real-dcgm -- --source dcgm=CLONE` compiles once and keeps it by commit; then
check-dcgm's own tests run it (its `tests/test_real_engine.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from .images import COMPONENTS, ROOT
from .program import leave
from .sources import RigError, checkout, kept_at, rig

RIG = ROOT / "e2e/real-dcgm"
CLIENT = ROOT / "packages/check-dcgm/dcgm/client.mk"
NEEDED: Final = {
    "event2/event.h": "libevent-dev",
    "json/json.h": "libjsoncpp-dev",
    "yaml-cpp/yaml.h": "libyaml-cpp-dev",
    "boost/asio.hpp": "libboost1.81-dev",
}
"""Header → Debian's package that has it."""


def build(given: Mapping[str, Path]) -> Path:
    """The folder with bin (dcgmi, nv-hostengine, nvvs, plugins) and lib; ``given``: repositories
    to take sources from. Raises RigError, SourceError.
    """
    _refuse_incomplete()
    kept = kept_at("real-dcgm")
    [component] = [c for c in COMPONENTS if c.image == "preflight-dcgm-diag"]
    pinned = {source.name: source for source in component.sources}
    dcgm = pinned["dcgm-4"]
    whole = replace(dcgm, name="dcgm-4-engine", paths=(*dcgm.paths, "hostengine"))
    folders = {
        name: checkout(
            source, given.get(name, given.get(name.removesuffix("-4"))), kept / "sources"
        )
        for name, source in {**pinned, "dcgm-4": whole}.items()
        if name in {"dcgm-4", "plog", "tclap", "fmt"}
    }
    version = dcgm.version.removeprefix("v")
    out = kept / f"{version}-{dcgm.commit[:12]}"
    words = [
        *("make", "-f", str(CLIENT), "-f", str(RIG / "engine.mk"), "engine"),
        f"SOURCE={folders['dcgm-4']}",
        f"FMT={folders['fmt']}",
        f"HEADERS={folders['plog']}/include {folders['tclap']}/include",
        f"OUT={out}",
        f"VERSION={version}",
        f"COMMIT={dcgm.commit}",
    ]
    out.mkdir(parents=True, exist_ok=True)
    with (out / "make.log").open("w") as log:
        done = subprocess.run(["nice", "-n", "19", *words], stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        raise RigError(
            f"DCGM {version} does not compile here; the first error is in {out / 'make.log'}."
        )
    return out


def _refuse_incomplete() -> None:
    tools = [tool for tool in ("g++", "gcc", "make", "git", "unshare") if not shutil.which(tool)]
    lacking = [] if "g++" in tools else [h for h in NEEDED if not _has_header(h)]
    if tools or lacking:
        packages = ", ".join([*tools, *sorted({NEEDED[header] for header in lacking})])
        raise RigError(
            f"the real DCGM cannot be compiled here: {packages} missing; install these of Debian, or name their folders in "
            "CPLUS_INCLUDE_PATH, C_INCLUDE_PATH, LIBRARY_PATH and LD_LIBRARY_PATH."
        )


def _has_header(name: str) -> bool:
    asked = f"#include <{name}>\n"
    words = ["g++", "-x", "c++", "-E", "-I/usr/include/jsoncpp", "-o", os.devnull, "-"]
    return (
        subprocess.run(words, input=asked, text=True, capture_output=True, check=False).returncode
        == 0
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints the folder, or exits 1 with one sentence."""
    names = ["dcgm", "dcgm-4", "plog", "tclap", "fmt"]  # errors name it as the recipe does
    return rig(argv, "real-dcgm", __doc__, names, build)


if __name__ == "__main__":
    leave(main)
