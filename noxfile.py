"""Every chore of the house, by name. `nox -l` is the menu; `nox` alone is what a change must pass."""

from __future__ import annotations

import os
import shutil

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "layers", "codegen", "lock", "test"]

MEMBERS = {
    "preflight-proto": "packages/preflight-proto",
    "preflight-webhook": "packages/preflight-webhook",
    "preflight-gang": "packages/preflight-gang",
    "check-dcgm": "packages/check-dcgm",
    "check-nccl-loopback": "packages/check-nccl-loopback",
    "check-nccl-allreduce": "packages/check-nccl-allreduce",
    "preflight-e2e": "e2e",
}


def sync(session: nox.Session, *args: str) -> None:
    """Make the session's environment exactly what uv.lock says for `args`."""
    session.run_install("uv", "sync", "--frozen", *args, env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location})


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format, over everything (`-- --fix` mends)."""
    sync(session, "--only-group", "lint")
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
@nox.parametrize("member", list(MEMBERS), ids=list(MEMBERS))
def types(session: nox.Session, member: str) -> None:
    """mypy strict, each member in an environment of its own."""
    sync(session, "--package", member, "--group", "types")
    session.run("mypy", *(f"{MEMBERS[member]}/{part}" for part in ("src", "tests")))


@nox.session
def layers(session: nox.Session) -> None:
    """import-linter: components are independent, layers point down, pure modules stay pure."""
    sync(session, "--all-packages", "--group", "layers")
    session.run("lint-imports")


@nox.session
def codegen(session: nox.Session) -> None:
    """Generated files are what their generators make (run it to regenerate them)."""
    sync(session, "--all-packages", "--group", "codegen")
    session.run("python", "packages/preflight-proto/codegen.py")
    session.run("python", "-m", "preflight_e2e.chart_schema")
    session.run("python", "-m", "preflight_e2e.matrix_schema")
    generated = [
        "packages/preflight-proto/src/preflight_proto/_generated",
        "charts/preflight-injector/values.schema.json",
        "charts/preflight-gang/values.schema.json",
        "e2e/matrix/schema.json",
    ]
    session.run("git", "add", "--intent-to-add", *generated, external=True)
    session.run("git", "diff", "--exit-code", "--", *generated, external=True)


@nox.session
def lock(session: nox.Session) -> None:
    """uv.lock is what the pyproject files say."""
    session.run_install("uv", "lock", "--check")


@nox.session
@nox.parametrize("member", ["workspace", *MEMBERS], ids=["workspace", *MEMBERS])
def test(session: nox.Session, member: str) -> None:
    """Unit and component tests, each member in an environment of its own (`-- ARGS` go to pytest)."""
    if member == "workspace":
        sync(session, "--only-group", "test")
        session.run("pytest", "tests", *session.posargs)
        return
    group = [] if member == "preflight-e2e" else ["--group", "test"]
    sync(session, "--package", member, *group)
    ignore = ["--ignore=e2e/tests/cluster"] if member == "preflight-e2e" else []
    session.run("pytest", f"{MEMBERS[member]}/tests", *ignore, *session.posargs)


@nox.session
def images(session: nox.Session) -> None:
    """Build every component's image with docker, podman or buildah (`-- --help` for options)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e.images", *session.posargs)


@nox.session
def e2e(session: nox.Session) -> None:
    """Install the charts on a real cluster and run the fault matrix (kind; `-- --cluster existing`)."""
    sync(session, "--package", "preflight-e2e")
    session.run("python", "-m", "preflight_e2e", "run", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure: `-- webhook --json FILE` drives the real server over TLS, `-- localisation` simulates gangs."""
    sync(session, "--all-packages", "--group", "bench")
    session.run("python", "-m", "preflight_e2e.bench", *session.posargs, env=without_pythonpath())


def without_pythonpath() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


@nox.session(venv_backend="none")
def clean(session: nox.Session) -> None:
    """Remove what the sessions left in the checkout (environments and caches)."""
    for path in (".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"):
        shutil.rmtree(path, ignore_errors=True)
