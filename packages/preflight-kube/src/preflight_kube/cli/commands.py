"""What command lines share: how they parse, how they end, and the commands that each of them has.

A program makes its parser with :func:`parser`, adds its commands with :func:`command`, and ends
with :func:`main`, which no traceback leaves::

    def main() -> NoReturn:
        commands.main(_parser)

    def _parser() -> argparse.ArgumentParser:
        made, subparsers = commands.parser("my-controller", "What it is for.")
        run = commands.command(subparsers, "run", _run, help="be one replica")
        run.add_argument("--port", type=commands.port, default=8080, help="…")
        commands.report(subparsers, "validate-config", _add_validate)
        return made

A command returns its exit status, and raises :class:`BadInput` or :class:`CommandFailed` with what
is wrong. Loads neither the Kubernetes client nor the event loop.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from preflight_kube.errors import BadAccess, KubeError
from preflight_kube.files.configfile import ConfigError
from preflight_kube.text import printable_lines

if TYPE_CHECKING:
    from argparse import _SubParsersAction

T = TypeVar("T")

DONE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
CANCELLED: Final = 130
"""After Ctrl-C, as shells have it: 128 + SIGINT."""
UNREAD: Final = 141
"""Where whoever read the output has gone, as of a program that SIGPIPE ended: 128 + SIGPIPE."""
EXIT_CODES: Final = (
    "exit status: 0 done; 1 it could not be done (the API server does not answer, refuses, or has no such object); "
    "2 bad input (arguments, a file, a kubeconfig that cannot be used)"
)
"""What every command line says in its help."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a file that is read; an object in a cluster has at most 1.5 MB."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What writing says of standard output that goes to a file which takes no more."""


class BadInput(Exception):
    """Arguments or files cannot be used; ``problems`` has one sentence each. Ends the program with
    :data:`BAD_INPUT`.
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class CommandFailed(Exception):
    """It could not be done; the message is one sentence. Ends the program with :data:`FAILED`."""


def parser(
    program: str, about: str, *, epilog: str = "", distribution: str = ""
) -> tuple[argparse.ArgumentParser, _SubParsersAction[argparse.ArgumentParser]]:
    """A parser with ``--version``, and what commands are added to. ``about`` and ``epilog`` are
    shown as they are written.

    ``distribution``: the installed package whose version it is; default: the one named as the
    program.
    """
    argument_parser = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog=f"{epilog}{EXIT_CODES}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    argument_parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        const=distribution or program,
        default=argparse.SUPPRESS,
        help="show the version and exit",
    )
    return argument_parser, argument_parser.add_subparsers(required=True, metavar="COMMAND")


def command(
    subparsers: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
) -> argparse.ArgumentParser:
    """The parser of a new command, for its arguments. ``run`` gets what was parsed, and returns the
    exit status.
    """
    subparser = subparsers.add_parser(name, help=help)
    subparser.set_defaults(run=run)
    return subparser


def report(
    subparsers: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    add: Callable[[argparse.ArgumentParser], None],
) -> None:
    """A command that the program ``preflight`` has, too: ``add`` adds its arguments and sets what
    runs; its docstring is the help.
    """
    text = " ".join((add.__doc__ or "").split()).removesuffix(".")
    add(subparsers.add_parser(name, help=text[:1].lower() + text[1:]))


def validates(
    subparser: argparse.ArgumentParser,
    parse: Callable[[str], object],
    *,
    about: Callable[[Any], Iterable[str]] = lambda _: (),
    warnings: Callable[[Any], Iterable[str]] = lambda _: (),
    takes: str = "the configuration (YAML; see `schema`)",
) -> None:
    """``FILE``: list every problem that ``parse`` raises as a :class:`~.configfile.ConfigError`, by
    path.

    ``about`` says more of a good one, and ``warnings`` what is odd about it, in one sentence each;
    ``takes`` is what the help says of FILE.
    """

    def run(args: argparse.Namespace) -> int:
        config = load(parse, args.file)
        print(f"{args.file}: no problem found{''.join(f'; {more}' for more in about(config))}")
        for warning in warnings(config):
            print(f"{args.file}: warning: {warning}", file=sys.stderr)
        return DONE

    subparser.set_defaults(run=run)
    subparser.add_argument("file", metavar="FILE", help=f"{takes}; - for standard input")


def add_schema(
    subparsers: _SubParsersAction[argparse.ArgumentParser], schema: Callable[[], dict[str, Any]]
) -> None:
    """``schema``: print the configuration's JSON Schema."""

    def run(_: argparse.Namespace) -> int:
        print(json.dumps(schema(), indent=2))
        return DONE

    command(subparsers, "schema", run, help="print the configuration's JSON Schema")


def add_crd(
    subparsers: _SubParsersAction[argparse.ArgumentParser],
    crd: Callable[[], dict[str, Any] | list[dict[str, Any]]],
) -> None:
    """``crd``: print one or several CustomResourceDefinitions as YAML."""

    def run(_: argparse.Namespace) -> int:
        import yaml

        definitions = crd()
        print(
            yaml.safe_dump_all(
                definitions if isinstance(definitions, list) else [definitions],
                sort_keys=False,
                width=120,
            ),
            end="",
        )
        return DONE

    command(
        subparsers,
        "crd",
        run,
        help="print the CustomResourceDefinitions, for `kubectl apply --server-side -f -`",
    )


def add_config(subparser: argparse.ArgumentParser) -> None:
    """``--config FILE``: a path; None where the defaults are meant."""
    subparser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration (YAML; see `schema`); default: all defaults",
    )


def add_client_ca(subparser: argparse.ArgumentParser) -> None:
    """Add ``--client-ca``, for :class:`~preflight_kube.admission.tls.Certificate`."""
    subparser.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="serve admission only to clients with a certificate of this authority (PEM); reloaded when it changes",
    )


def add_controller(
    subparsers: _SubParsersAction[argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """``controller``: be one replica, with ``--namespace``, ``--host`` and ``--port``."""
    subparser = command(subparsers, "controller", run, help="be one replica of the controller")
    add_lease(subparser)
    add_address(subparser)
    return subparser


def add_lease(subparser: argparse.ArgumentParser) -> None:
    """``--namespace``, of the lease by which a replica leads."""
    subparser.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the lease is kept (POD_NAMESPACE; here %(default)s)",
    )


def add_address(subparser: argparse.ArgumentParser) -> None:
    """``--host`` and ``--port``, of the plain port that every service has."""
    add_host(subparser)
    add_port(subparser, "--port", "LISTEN_PLAIN", 8080, "/healthz, /readyz, /metrics")


def add_host(subparser: argparse.ArgumentParser) -> None:
    """``--host``, of all ports."""
    subparser.add_argument(
        "--host",
        default=os.environ.get("LISTEN_HOST") or "0.0.0.0",  # noqa: S104
        help="address to listen on; ::, all of both families (LISTEN_HOST; here %(default)s)",
    )


def add_port(
    subparser: argparse.ArgumentParser, option: str, variable: str, usual: int, what: str
) -> None:
    """A port's ``option``, whose default may stand in the environment."""
    subparser.add_argument(
        option,
        type=port,
        default=os.environ.get(variable) or usual,
        help=f"{what} ({variable}; here %(default)s; 0: any)",
    )


def read(path: Path | str) -> str:
    """The text of a file of :data:`MOST_BYTES` at most; ``-`` is standard input. Raises
    :class:`BadInput`.
    """
    try:
        if str(path) == "-":
            if sys.stdin is None:  # it was closed before the start
                raise BadInput("standard input: is closed; give a readable file.")
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise BadInput(f"{named(path)}: {why}; give a readable file.") from None
    if len(data) > MOST_BYTES:
        raise BadInput(f"{named(path)}: has more than {MOST_BYTES} bytes; give a smaller file.")
    return text


def load(parse: Callable[[str], T], path: Path | str) -> T:
    """What ``parse`` makes of a file's text. Raises :class:`BadInput` with every problem, each
    after the file's name.
    """
    text = read(path)
    try:
        return parse(text)
    except Exception as error:
        problems = getattr(error, "problems", None)
        if problems is None:
            raise
        raise BadInput(f"{named(path)}: {problem}" for problem in problems) from None


def manifests(path: Path | str) -> list[Any]:
    """The objects that people wrote in a file (YAML or JSON), those of a list one by one, within
    bounds: every command that reads some reads them so. Raises :class:`BadInput`.
    """
    from preflight_kube.files import yaml_document as document

    objects: list[Any] = []
    for manifest in load(lambda text: document.read_all(text, document.MANIFEST), path):
        lists = isinstance(manifest, dict) and str(manifest.get("kind")).endswith("List")
        inner = manifest.get("items") if lists else None
        objects += inner if isinstance(inner, list) else [manifest]
    return objects


def named(path: Path | str) -> str:
    """How a file is called in a sentence."""
    return "standard input" if str(path) == "-" else str(path)


def port(text: str) -> int:
    """An argument's type: a port, 0 for any."""
    return number(0, 65535, "port")(text)


def number(least: int, most: int, what: str) -> Callable[[str], int]:
    """An argument's type: a whole number from ``least`` to ``most``; ``what`` is
    how it is called.
    """

    def parse(text: str) -> int:
        value = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f'"{text:.40}" is not a {what}; give a number from {least} to {most}'
            )
        return value

    return parse


def seconds(text: str) -> float:
    """An argument's type: seconds from 0 to 3600."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f'"{text:.40}" is not a time; give seconds from 0 to 3600')
    return value


def say(report: str) -> None:
    """Print a report. What others wrote is in it, and changes no terminal."""
    print(printable_lines(report))


def version_of(distribution: str) -> str:
    """The version of an installed package; "unknown" where it is not installed."""
    # Slow to load, and most runs never say their version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def main(
    make: Callable[[], argparse.ArgumentParser], arguments: list[str] | None = None
) -> NoReturn:
    """Parse ``arguments`` (default: the program's own), run the command, and exit with its status.

    What is bad input or fails ends with its sentences on standard error: :class:`BadInput`,
    :class:`CommandFailed`, :class:`~.configfile.ConfigError`, :class:`~.errors.KubeError`. There is
    no traceback for a reader that went away, a full disk or Ctrl-C.
    """
    if sys.stderr is None:  # closed before the start: complaints would go to standard output
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    try:
        status = _ended(make, arguments)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: it was closed before the start
                stream.flush()
    except BrokenPipeError:
        _discard()
        status = UNREAD
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard()
        why = f"standard output: cannot be written ({error.strerror or error}); write elsewhere."
        status = complain([why], FAILED)
    sys.exit(status)


def _discard() -> None:
    """Let what is left for standard output go nowhere: the interpreter flushes it once more at its
    end.
    """
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ended(make: Callable[[], argparse.ArgumentParser], arguments: list[str] | None) -> int:
    try:
        args = make().parse_args(arguments)
        return int(args.run(args))
    except (BadInput, ConfigError) as error:
        return complain(error.problems, BAD_INPUT)
    except KubeError as error:
        return complain([str(error)], BAD_INPUT if isinstance(error, BadAccess) else FAILED)
    except CommandFailed as error:
        return complain([str(error)], FAILED)
    except KeyboardInterrupt:
        return CANCELLED
    except SystemExit as asked:  # of argparse: what it has printed is still to be flushed
        return int(asked.code or DONE)


def complain(sentences: Iterable[str], status: int) -> int:
    """Print ``sentences`` as problems; the exit ``status`` that they are a reason for."""
    for sentence in map(printable_lines, sentences):
        print(sentence if sentence.endswith((".", "?", "!")) else f"{sentence}.", file=sys.stderr)
    return status


class _Version(argparse.Action):
    """Looks the version of ``const`` up when it is asked for, and not before."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version_of(str(self.const))}")
        parser.exit()
