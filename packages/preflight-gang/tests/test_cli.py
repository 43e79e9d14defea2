"""What the command line says to those who get it wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from preflight_gang.cli import main


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["preflight-gang", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("port", ["many", "-1", "65536", "8080.0"])
def test_what_is_no_port_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    error = said(monkeypatch, capsys, "run", f"--port={port}")
    assert f'"{port}" is no port; give a number from 0 to 65535' in error


def test_a_configuration_that_cannot_be_read_is_named_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent, binary = tmp_path / "absent.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe")
    assert said(monkeypatch, capsys, "validate-config", str(absent)) == (
        f"{absent}: No such file or directory; give a readable configuration file.\n"
    )
    assert said(monkeypatch, capsys, "validate-config", str(binary)) == (
        f"{binary}: not UTF-8; give a readable configuration file.\n"
    )
