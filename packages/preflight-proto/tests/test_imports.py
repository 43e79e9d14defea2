from __future__ import annotations

import subprocess
import sys


def test_the_contract_loads_neither_grpc_nor_nvml() -> None:
    modules = "names, durations, stamp, roster, policy, result"
    code = (
        f"import sys, preflight_proto; from preflight_proto import {modules}; print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "preflight_proto.result" in loaded
    assert not {"grpclib", "grpc", "betterproto2", "pynvml", "anyio"} & set(loaded)


def test_the_kit_loads_grpc_only_when_it_reports() -> None:
    code = "import sys, preflight_proto.check; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"grpclib", "betterproto2", "pynvml"} & set(loaded)
    # What only some runs need, or all at their end: each costs a pod's start milliseconds.
    later = "argparse importlib.resources json msgspec multiprocessing tomllib uuid zipfile"
    assert not set(later.split()) & set(loaded)
