"""Rules of the whole repository, whichever member they concern."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MEMBERS = sorted(p.parent for p in [*ROOT.glob("packages/*/pyproject.toml")])
PUBLIC_INDEX = "https://" + "pypi.org/simple"


def tracked_files() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_the_lock_names_the_one_public_index_only() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    sources = {next(iter(package["source"].items())) for package in lock["package"]}
    registries = {where for kind, where in sources if kind == "registry"}
    others = {kind for kind, _ in sources} - {"registry", "editable", "virtual"}
    assert registries == {PUBLIC_INDEX}
    assert not others


@pytest.mark.parametrize("member", MEMBERS, ids=lambda p: p.name)
def test_every_package_has_what_a_reader_looks_for(member: Path) -> None:
    wanted = {"README.md", "CHANGELOG.md", "src", "tests"}
    image = (
        tomllib.loads((member / "pyproject.toml").read_text())
        .get("tool", {})
        .get("preflight", {})
        .get("image")
    )
    if image and "dockerfile" not in image:
        wanted.add("Dockerfile")
    assert wanted <= {p.name for p in member.iterdir()}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda p: p.name)
def test_every_package_says_of_which_kind_it_is_for_the_contracts_of_imports(member: Path) -> None:
    said = tomllib.loads((member / "pyproject.toml").read_text())["tool"]["preflight"]
    assert said["kind"] in {"service", "check", "library", "tests"}
    assert ("image" in said) == (said["kind"] in {"service", "check"})


@pytest.mark.parametrize("member", MEMBERS, ids=lambda p: p.name)
def test_every_package_readme_fills_a_page_but_no_more(member: Path) -> None:
    assert 15 <= len((member / "README.md").read_text().splitlines()) <= 200


def test_every_nox_session_says_in_one_line_what_it_does() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("session" in ast.unparse(d) for d in node.decorator_list)
    ]
    assert sessions
    for node in sessions:
        doc = ast.get_docstring(node)
        assert doc, node.name
        assert "\n" not in doc, node.name


def test_no_file_but_the_lock_names_a_registry_host() -> None:
    host = re.compile(
        r"(?i)\b(pypi\.org|pythonhosted\.org|docker\.io|registry\.npmjs|proxy\.golang|deb\.debian|ghcr\.io|nvcr\.io|quay\.io|registry\.k8s\.io)\b"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked_files()
        if path.name not in {"uv.lock", Path(__file__).name}
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1)
        if host.search(line)
    ]
    assert not found


def test_no_long_module() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked_files()
        if path.suffix == ".py" and "/src/" in str(path) and "_generated" not in path.parts
        if (lines := len(path.read_text().splitlines())) > 570
    }
    assert not long, "one module, one noun: split it"


def test_no_source_reaches_into_the_tests_of_another_member() -> None:
    found = []
    for path in tracked_files():
        name = str(path.relative_to(ROOT))
        member, source, _ = name.partition("/src/")
        if path.suffix != ".py" or not source or "tests" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp | ast.Constant) and id(node) not in prose:
                into = re.search(r"\b(packages/[\w-]+|e2e)/tests\b", said(node))
                if into and into[1] != member:
                    found.append(f"{name}:{node.lineno}: {into[0]}")
    assert not found, "what two members need belongs into the source of one"


@pytest.mark.parametrize("member", MEMBERS, ids=lambda p: p.name)
def test_no_package_uses_the_e2e_not_even_in_its_tests(member: Path) -> None:
    """It proves them from outside; what it shares with their tests is in preflight-testing."""
    assert "preflight-e2e" not in (member / "pyproject.toml").read_text()
    imports = re.compile(r"^\s*(?:from|import) preflight_e2e\b", re.MULTILINE)
    found = [path for path in member.rglob("*.py") if imports.search(path.read_text())]
    assert not found


def said(node: ast.AST) -> str:
    """A text, or the texts that are joined to a path by slashes."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return f"{said(node.left)}/{said(node.right)}"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_relative_link_of_the_manual_leads_somewhere() -> None:
    link = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in tracked_files()
        if page.suffix == ".md"
        for target in link.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_every_design_note_is_listed() -> None:
    folder = ROOT / "docs" / "design"
    listed = (folder / "README.md").read_text()
    assert not [note.name for note in folder.glob("20*.md") if f"({note.name})" not in listed]


def test_every_path_that_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:packages|e2e|docs|charts|tests)/[\w./-]+)`", text))
    assert named
    assert not {path for path in named if not (ROOT / path).exists()}
