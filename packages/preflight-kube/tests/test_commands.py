"""How command lines parse and how they end; as processes where that is what matters."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from preflight_kube.cli import commands
from preflight_kube.cli.commands import (
    BAD_INPUT,
    CANCELLED,
    DONE,
    FAILED,
    UNREAD,
    BadInput,
    CommandFailed,
)
from preflight_kube.errors import BadAccess, KubeError
from preflight_kube.files.configfile import ConfigError
from preflight_kube.files.yaml_document import DocumentError, read


def parse(text: str) -> dict[str, Any]:
    try:
        found = read(text) or {}
    except DocumentError as error:
        raise ConfigError(error.problems) from None
    if problems := [f"{key}: unknown key; remove it." for key in found if key not in {"checks"}]:
        raise ConfigError(problems)
    assert isinstance(found, dict)
    return found


def make() -> argparse.ArgumentParser:
    made, subparsers = commands.parser(
        "a-program", "What it is for.\n", distribution="preflight-kube"
    )
    say = commands.command(subparsers, "say", _say, help="say something")
    say.add_argument("how")
    say.add_argument("--port", type=commands.port, default=8080)
    say.add_argument("--wait", type=commands.seconds, default=1.0)
    commands.report(subparsers, "validate-config", _add_validate)
    commands.add_schema(subparsers, lambda: {"type": "object"})
    commands.add_crd(subparsers, lambda: [{"kind": "One"}, {"kind": "Two"}])
    return made


def _add_validate(parser: argparse.ArgumentParser) -> None:
    """List every problem of a configuration file."""
    commands.validates(
        parser,
        parse,
        about=lambda config: [f"checks: {len(config.get('checks', []))}"],
        warnings=lambda config: [] if config.get("checks") else ["checks: is empty; name one."],
    )


def _say(args: argparse.Namespace) -> int:
    errors: dict[str, BaseException] = {
        "bad": BadInput(["one: is wrong.", "two: is wrong."]),
        "failed": CommandFailed("it could not be done."),
        "config": ConfigError(["x: is wrong."]),
        "kube": KubeError("it does not answer."),
        "access": BadAccess("no kubeconfig."),
        "unended": BadInput("without an end"),
        "hostile": BadInput("\x1b[31mit\u202e is wrong.\nHere."),
        "ctrl-c": KeyboardInterrupt(),
        "bug": RuntimeError("ours"),
    }
    if args.how in errors:
        raise errors[args.how]
    if args.how == "much":
        for _ in range(100_000):
            print("a line that nobody reads")
    print(args.port, args.wait)
    return 7 if args.how == "seven" else DONE


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as raised:
        commands.main(make, list(arguments))
    assert isinstance(raised.value.code, int)
    return raised.value.code


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("bad", BAD_INPUT, ["one: is wrong.", "two: is wrong."]),
        ("failed", FAILED, ["it could not be done."]),
        ("config", BAD_INPUT, ["x: is wrong."]),
        ("kube", FAILED, ["it does not answer."]),
        ("access", BAD_INPUT, ["no kubeconfig."]),
        ("unended", BAD_INPUT, ["without an end."]),
        ("ctrl-c", CANCELLED, []),
        ("well", DONE, []),
        ("seven", 7, []),
    ],
)
def test_a_command_ends_with_its_status_and_its_sentences(
    how: str, status: int, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("say", how) == status
    assert capsys.readouterr().err.splitlines() == said


def test_a_fault_of_the_program_is_not_hidden() -> None:
    with pytest.raises(RuntimeError):
        commands.main(make, ["say", "bug"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["say", "well", "--port", "65536"],
            '"65536" is not a port; give a number from 0 to 65535',
        ),
        (["say", "well", "--port", "-1"], "port"),
        (["say", "well", "--port", "٣"], "is not a port"),
        (["say", "well", "--wait", "nan"], '"nan" is not a time; give seconds from 0 to 3600'),
        (["say", "well", "--wait", "3601"], "is not a time"),
        (["nothing"], "invalid choice"),
        ([], "COMMAND"),
    ],
)
def test_arguments_that_cannot_be_used_end_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments) == BAD_INPUT
    assert said in capsys.readouterr().err


def test_help_says_what_the_exit_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--help") == DONE
    assert "exit status: 0 done" in " ".join(capsys.readouterr().out.split())


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--version") == DONE
    assert capsys.readouterr().out == f"a-program {commands.version_of('preflight-kube')}\n"
    assert commands.version_of("no-such-package-is-there") == "unknown"


def test_validate_config_says_that_all_is_well_or_every_problem_after_the_files_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("checks: [a]\n")
    assert ended("validate-config", str(file)) == DONE
    assert capsys.readouterr().out == f"{file}: no problem found; checks: 1\n"
    file.write_text("")
    assert ended("validate-config", str(file)) == DONE
    assert capsys.readouterr().err == f"{file}: warning: checks: is empty; name one.\n"
    file.write_text("x: 1\ny: 2\n")
    assert ended("validate-config", str(file)) == BAD_INPUT
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: x: unknown key; remove it.",
        f"{file}: y: unknown key; remove it.",
    ]


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    assert ended("validate-config", str(file)) == BAD_INPUT
    assert capsys.readouterr().err == f"{file}: No such file or directory; give a readable file.\n"
    file.write_bytes(b"\xff\xfe")
    assert ended("validate-config", str(file)) == BAD_INPUT
    assert capsys.readouterr().err == f"{file}: not UTF-8; give a readable file.\n"
    file.write_bytes(b"#" * (commands.MOST_BYTES + 1))
    assert ended("validate-config", str(file)) == BAD_INPUT
    assert "has more than" in capsys.readouterr().err


def test_schema_and_crd_print_what_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("schema") == DONE
    assert json.loads(capsys.readouterr().out) == {"type": "object"}
    assert ended("crd") == DONE
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [{"kind": "One"}, {"kind": "Two"}]


def test_the_objects_of_a_list_are_read_one_by_one(tmp_path: Path) -> None:
    listed: dict[str, Any] = {"kind": "PodList", "items": [{"kind": "Pod"}, {"kind": "Node"}]}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([listed, {"kind": "List"}, 5]))
    assert commands.manifests(tmp_path / "all.yaml") == [*listed["items"], {"kind": "List"}, 5]


# --- as processes

PROGRAM = (
    "import test_commands as t; from preflight_kube.cli import commands; commands.main(t.make)"
)


def process(*arguments: str, **how: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=Path(__file__).parent, stderr=subprocess.PIPE, **how)


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    with process("say", "much", stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.read(10)
        running.stdout.close()
        _, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (UNREAD, b"")


def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full, process("say", "well", stdout=full) as running:
        _, said = running.communicate(timeout=60)
    assert running.returncode == FAILED
    assert (
        said.decode()
        == "standard output: cannot be written (No space left on device); write elsewhere.\n"
    )


def test_standard_input_is_read_as_a_file() -> None:
    with process("validate-config", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        out, said = running.communicate(b"x: 1\n", timeout=60)
    assert (running.returncode, out) == (BAD_INPUT, b"")
    assert said == b"standard input: x: unknown key; remove it.\n"


@pytest.mark.parametrize(
    ("closed", "words", "said"),
    [
        ("<&-", ["validate-config", "-"], "standard input: is closed; give a readable file.\n"),
        ("2>&-", ["validate-config", "/nowhere"], ""),
        ("2>&-", ["no-such-command"], ""),
    ],
)
def test_a_stream_that_is_closed_leaves_the_others_alone(
    closed: str, words: list[str], said: str
) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", PROGRAM, *words]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (BAD_INPUT, "", said)


def test_a_command_line_loads_neither_client_nor_event_loop() -> None:
    code = "import sys, preflight_kube.cli.commands, preflight_kube.files.yaml_document; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    ).stdout.split()
    assert not {"anyio", "asyncio", "httpx", "jsonschema", "prometheus_client"} & set(loaded)


def test_a_service_takes_its_lease_and_its_addresses_from_the_environment_or_its_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parsed(*words: str, **environ: str) -> tuple[Any, ...]:
        for name in ("POD_NAMESPACE", "LISTEN_HOST", "LISTEN_PLAIN", "LISTEN_TLS"):
            monkeypatch.setenv(name, environ.get(name, ""))
        made = argparse.ArgumentParser()
        commands.add_config(made)
        commands.add_lease(made)
        commands.add_address(made)
        commands.add_port(made, "--tls-port", "LISTEN_TLS", 8443, "admission")
        found = made.parse_args(words)
        return found.config, found.namespace, found.host, found.port, found.tls_port

    assert parsed() == (None, "preflight", "0.0.0.0", 8080, 8443)
    environ = {"POD_NAMESPACE": "ops", "LISTEN_HOST": "::", "LISTEN_PLAIN": "18080"}
    assert parsed(**environ) == (None, "ops", "::", 18080, 8443)
    told = ("--config=c.yaml", "--namespace=x", "--host=127.0.0.1", "--port=0")
    assert parsed(*told, **environ) == (Path("c.yaml"), "x", "127.0.0.1", 0, 8443)
    for words, bad in ((("--port", "70000"), {}), ((), {"LISTEN_TLS": "tcp://10.0.0.1:443"})):
        with pytest.raises(SystemExit):
            parsed(*words, **bad)
        assert ("--tls-port" if bad else "--port") in capsys.readouterr().err


def test_what_others_wrote_changes_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("say", "hostile") == BAD_INPUT
    assert capsys.readouterr().err == " [31mit  is wrong.\nHere.\n"
    commands.say("a\tb\x07\nc")
    assert capsys.readouterr().out == "a b \nc\n"
