"""Make the betterproto2 stubs under ``src/preflight_proto/_generated`` from
``proto/health_event.proto``.

Run it with the group ``codegen`` installed; running it twice changes nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUT = HERE / "src" / "preflight_proto" / "_generated"


def main() -> None:
    """Generate into a temporary folder, then replace the committed one."""
    with tempfile.TemporaryDirectory() as tmp:
        plugin = Path(sys.executable).with_name("protoc-gen-python_betterproto2")
        subprocess.run(
            [
                *(sys.executable, "-m", "grpc_tools.protoc"),
                f"--plugin=protoc-gen-python_betterproto2={plugin}",
                f"--proto_path={HERE / 'proto'}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--python_betterproto2_out={tmp}",
                "--python_betterproto2_opt=client_generation=async,server_generation=async",
                "health_event.proto",
            ],
            check=True,
            env={
                **os.environ,
                "PATH": f"{plugin.parent}:{os.environ['PATH']}",
            },  # the plugin calls ruff by name
        )
        google = Path(tmp) / "google/protobuf/__init__.py"
        google.write_text(_without_comments(google.read_text()))
        shutil.rmtree(OUT, ignore_errors=True)
        shutil.copytree(tmp, OUT, ignore=shutil.ignore_patterns("__pycache__"))


def _without_comments(text: str) -> str:
    """Drop what Google's own .proto files say to users of other languages: half of the text."""
    return re.sub(r'^    """\n.*?^    """\n', "", text, flags=re.MULTILINE | re.DOTALL)


if __name__ == "__main__":
    main()
