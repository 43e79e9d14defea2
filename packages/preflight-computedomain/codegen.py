"""Make the betterproto2 messages under ``src/preflight_computedomain/_generated`` from the files of
``proto``.

Run it with the group ``codegen`` of preflight-proto installed; running it twice changes nothing.
Messages alone: the services are served by grpcio, by name (see
``node/grpc_server.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "src" / "preflight_computedomain" / "_generated"


def main() -> None:
    """Generate into a temporary folder, then replace the committed one."""
    with tempfile.TemporaryDirectory() as tmp:
        plugin = Path(sys.executable).with_name("protoc-gen-python_betterproto2")
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc"),
                f"--plugin=protoc-gen-python_betterproto2={plugin}",
                f"--proto_path={HERE / 'proto'}",
                f"--python_betterproto2_out={tmp}",
                "--python_betterproto2_opt=client_generation=none,server_generation=none",
                "kubelet.proto",
            ],
            check=True,
            env={
                **os.environ,
                "PATH": f"{plugin.parent}:{os.environ['PATH']}",
            },  # the plugin calls ruff by name
        )
        for made in Path(tmp).rglob("*.py"):  # not typed as strictly as what is written by hand
            if text := made.read_text():
                made.write_text(f"# mypy: ignore-errors\n{text}")
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(tmp, OUT, ignore=shutil.ignore_patterns("__pycache__"))


if __name__ == "__main__":
    main()
