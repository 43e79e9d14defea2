"""What READMEs, manual and charts say is what the code has: modules, metrics, codes, variables and
values, both ways.

The source is read as text, not imported: this session has none of the members' dependencies.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = sorted(p.parent for p in ROOT.glob("packages/*/pyproject.toml"))
CHECKS = [package for package in PACKAGES if package.name.startswith("check-")]
SERVICES = [package for package in PACKAGES if list(package.glob("src/*/metrics.py"))]
KIT = ROOT / "packages/preflight-proto/src/preflight_proto/check"
RUNTIME = ROOT / "packages/preflight-kube/src/preflight_kube/runtime/controller.py"
NAMES = ROOT / "packages/preflight-proto/src/preflight_proto/names.py"

LONG = 60
"""Characters from which on a line says something of its own; shorter ones may well stand in two
lists.
"""
OUTCOMES = {"passed", "skipped", "failed", "inconclusive"}
CODE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")


def name(path: Path) -> str:
    return path.name


def pages() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / page for page in listed.stdout.split("\0") if page and (ROOT / page).is_file()]


# --- reading pages


def prose(page: Path) -> Iterator[str]:
    """The lines outside of code blocks."""
    inside = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def table(page: Path, *headers: str) -> list[list[str]]:
    """The rows of all tables of ``page`` whose first column is called one of
    ``headers``, as cells.
    """
    rows, within, before = [], False, ""
    for line in prose(page):
        if not line.startswith("|"):
            within = False
        elif set(line) <= set("| -"):
            within = _cells(before)[0].strip("`") in headers
        elif within:
            rows.append(_cells(line))
        before = line
    return rows


def _cells(line: str) -> list[str]:
    return (
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|")
        else [""]
    )


def quoted(text: str) -> set[str]:
    """What stands in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


# --- reading source


@lru_cache
def trees(folder: Path) -> tuple[ast.Module, ...]:
    paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return tuple(ast.parse(path.read_text()) for path in paths if "_generated" not in path.parts)


def nodes(folder: Path) -> Iterator[ast.AST]:
    for tree in trees(folder):
        yield from ast.walk(tree)


def source(package: Path) -> Path:
    return next(path for path in package.glob("src/*") if (path / "__init__.py").is_file())


def called(call: ast.Call) -> str:
    """The last word of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def text(node: ast.AST | None) -> str:
    """The text that a node is, by itself or as a name of `names`; else nothing."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return variables().get(node.attr, "") if isinstance(node, ast.Attribute) else ""


@lru_cache
def variables() -> dict[str, str]:
    """The constants of `preflight_proto.names` that are plain texts."""
    return {
        node.target.id: str(node.value.value)
        for node in nodes(NAMES)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }


# --- pages by themselves


def test_no_page_says_the_same_line_twice() -> None:
    twice = []
    for page in pages():
        seen: dict[str, int] = {}
        for number, line in enumerate(page.read_text().splitlines(), 1):
            said = line.strip()
            if len(said) >= LONG and not said.startswith("|"):
                if said in seen:
                    twice.append(f"{page}: lines {seen[said]} and {number}: {said}")
                seen.setdefault(said, number)
    assert not twice


def test_no_two_long_lines_of_a_page_begin_alike() -> None:
    """A merge that keeps both versions of a changed sentence leaves two with one beginning."""
    twice = set()
    for page in pages():
        lines = (re.sub(r"\]\([^)]*\)", "]", line).strip() for line in prose(page))
        beginnings = Counter(
            line[: LONG // 2]
            for line in lines
            if len(line) >= LONG and not line.startswith(("|", "<!-- [[[cog "))
        )
        twice |= {(str(page), one) for one, times in beginnings.items() if times > 1}
    assert not twice


def test_no_table_of_a_page_has_two_rows_about_the_same_name() -> None:
    twice = []
    for page in pages():
        seen: set[str] = set()
        for line in prose(page):
            if not line.startswith("|"):
                seen = set()
            elif "`" in (about := _cells(line)[0]):
                twice += [(str(page), about)] if about in seen else []
                seen.add(about)
    assert not twice


# --- modules


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_readme_names_every_module_of_its_package(package: Path) -> None:
    said = {
        one.rstrip("/").removesuffix(".py").split("/")[-1]
        for line in prose(package / "README.md")
        for one in quoted(line)
    }
    missing = {module.rstrip("/") for module in modules(source(package))} - said
    assert not missing


@pytest.mark.parametrize("package", PACKAGES, ids=name)
def test_a_table_of_modules_names_no_other(package: Path) -> None:
    folder = source(package)
    known = (
        modules(folder)
        | {path.name for path in folder.rglob("*.toml")}
        | {"__main__", "_generated"}
    )
    known |= {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.py")}
    gone = {
        one for row in table(package / "README.md", "module", "around it") for one in quoted(row[0])
    } - known
    assert not gone


def modules(folder: Path) -> set[str]:
    """Modules by name, packages by name and a slash, at any depth; what begins with an underscore
    is nobody's to read about.
    """
    paths = [path for path in folder.rglob("*.py") if "_generated" not in path.parts]
    folders = {f"{path.parent.name}/" for path in paths if path.parent != folder}
    return {one for one in {path.stem for path in paths} | folders if not one.startswith("_")}


# --- metrics


@pytest.mark.parametrize("package", SERVICES, ids=name)
def test_a_readme_lists_exactly_the_metrics_of_its_package_with_their_labels(package: Path) -> None:
    rows = table(package / "README.md", "metric")
    said = {metric: quoted(row[2]) for row in rows for metric in quoted(row[0])}
    assert said == metrics(package)


def test_no_page_names_a_metric_that_no_package_has() -> None:
    known = {metric for package in SERVICES for metric in metrics(package)}
    members = {path.name for path in ROOT.glob("packages/*/src/*")} | {"preflight_e2e"}
    said = {
        f"{page.relative_to(ROOT)}: {metric}"
        for page in [*pages(), *(ROOT / "charts").rglob("values.yaml")]
        for metric in re.findall(r"\bpreflight_[a-z_]+[a-z](?![a-z_]*[./])", page.read_text())
        if metric not in known | members
    }
    assert not said


_FAMILIES = {
    "Counter": "_total",
    "CounterMetricFamily": "_total",
    "Gauge": "",
    "GaugeMetricFamily": "",
    "Histogram": "",
    "HistogramMetricFamily": "",
    "show_lag": "",
    # The same with their registry, as a service binds it once.
    "counter": "_total",
    "gauge": "",
    "histogram": "",
}


def metrics(package: Path) -> dict[str, set[str]]:
    """Label names by the metric's name, as Prometheus shows it; those of the kit's controller, too,
    where the package has them.
    """
    found, own = {}, source(package) / "metrics.py"
    kit = [RUNTIME] if "RuntimeMetrics" in own.read_text() else []
    for node in (node for path in (own, *kit) for node in nodes(path)):
        if (
            isinstance(node, ast.Call)
            and called(node) in _FAMILIES
            and node.args
            and (metric := text(node.args[0]))
        ):
            labels = [
                *node.args[2:3],
                *(keyword.value for keyword in node.keywords if keyword.arg == "labels"),
            ]
            found[metric + _FAMILIES[called(node)]] = {
                text(item) for one in labels if isinstance(one, ast.List) for item in one.elts
            }
    return found


# --- codes of checks


@pytest.mark.parametrize("package", CHECKS, ids=name)
def test_a_readme_names_every_code_that_its_check_can_end_with(package: Path) -> None:
    said = quoted((package / "README.md").read_text())
    families = tuple(one.rstrip("…") for one in said if one.endswith("…"))
    missing = {
        code for code in codes(package) if code not in said and not code.startswith(families)
    }
    assert not missing


@pytest.mark.parametrize("package", CHECKS, ids=name)
def test_a_readme_names_no_code_that_its_check_cannot_end_with(package: Path) -> None:
    said = {one for row in table(package / "README.md", "code") for one in quoted(row[0])}
    known = codes(package)
    gone = {
        one
        for one in said
        if one not in known and not (one.endswith("…") and _family(package, one))
    }
    assert said
    assert not gone


def _family(package: Path, said: str) -> bool:
    """Whether something begins like ``said``: of a table, or put together."""
    beginning = said.rstrip("…")
    tables = "".join(path.read_text() for path in source(package).glob("*.toml"))
    texts = {node.value for node in nodes(source(package)) if isinstance(node, ast.Constant)}
    put_together = any(isinstance(one, str) and one.startswith(beginning) for one in texts)
    return (
        beginning in tables
        or put_together
        or any(code.startswith(beginning) for code in codes(package))
    )


def codes(package: Path) -> set[str]:
    """Those of the check itself, and those of the parts of the kit that it uses."""
    own = source(package)
    whole = "".join(path.read_text() for path in own.rglob("*.py"))
    parts = [
        part
        for part in ("nccl", "topology", "scan")
        if re.search(
            rf"check\.{part}\b(?! import CounterSample)|check import (?:\([^)]*|.*)\b{part}\b",
            whole,
        )  # what the scan says of load is a fact among others, and no code
    ]
    parts += ["nccl_errors"] if "nccl" in parts else []
    parts += ["gang"] if "gang=True" in whole else []
    return {
        code
        for place in (own, *(KIT / f"{part}.py" for part in ["runner", "gpus", "presence", *parts]))
        for code in given(place)
    }


def given(folder: Path) -> Iterator[str]:
    """Texts that become a code: given for a parameter or put into a variable of that name, first in
    a table's row, or behind an outcome; first in a line of a table that is text."""
    places = parameters(KIT) | parameters(folder)
    for node in nodes(folder):
        yield from re.findall(r"(?m)^([A-Z][A-Z0-9_]+) \| ", text(node))
        found: list[ast.expr] = []
        if isinstance(node, ast.Call):
            at = places.get(called(node), len(node.args))
            found = [*node.args[at : at + 1], *(k.value for k in node.keywords if k.arg == "code")]
        elif isinstance(node, ast.Dict):
            found = [
                value.elts[0]
                for value in node.values
                if isinstance(value, ast.Tuple) and value.elts
            ]
        elif isinstance(node, ast.Tuple) and node.elts and text(node.elts[0]) in OUTCOMES:
            found = node.elts[1:2]
        elif isinstance(node, ast.Assign) and "code" in (
            words := [getattr(w, "id", "") for w in _words(node)]
        ):
            rows = [part for part in ast.walk(node.value) if isinstance(part, ast.Tuple)]
            found = (
                [row.elts[words.index("code")] for row in rows] if len(words) > 1 else [node.value]
            )
        yield from (
            code for one in found for part in ast.walk(one) if CODE.fullmatch(code := text(part))
        )


def _words(assigned: ast.Assign) -> list[ast.expr]:
    target = assigned.targets[0]
    return target.elts if isinstance(target, ast.Tuple) else [target]


@lru_cache
def parameters(folder: Path) -> dict[str, int]:
    """Where the parameter `code` stands, by what is called: functions, classes by their fields or
    their __init__.
    """
    found = {"inconclusive": 0}
    for node in nodes(folder):
        if isinstance(node, ast.FunctionDef):
            asked = [
                argument.arg for argument in node.args.args if argument.arg not in {"self", "cls"}
            ]
            if "code" in asked and node.name != "__init__":
                found[node.name] = asked.index("code")
        elif isinstance(node, ast.ClassDef):
            fields = [
                n.target.id
                for n in node.body
                if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
            ]
            made = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
            asked = [argument.arg for argument in made[0].args.args[1:]] if made else fields
            above = [base.id for base in node.bases if getattr(base, "id", "") in found]
            if "code" in asked:
                found[node.name] = asked.index("code")
            elif above and not made:
                found[node.name] = found[above[0]]
    return found


GANG_CODES = ROOT / "packages/preflight-gang/src/preflight_gang/api/error_codes.py"


def counted(package: Path) -> set[str]:
    """The codes that the gang controller counts by name for a check, and those that it knows of
    all.
    """
    words = {
        node.targets[0].id if isinstance(node, ast.Assign) else node.target.id: _texts(node.value)  # type: ignore[attr-defined]
        for node in nodes(GANG_CODES)
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None
    }
    own = {
        "check-dcgm": ["_SCAN", "_DCGM"],
        "check-nccl-loopback": ["_SCAN", "_NCCL", "_LOOPBACK"],
        "check-nccl-allreduce": ["_NCCL", "_ALLREDUCE"],
    }
    return {code for part in ["_STATUS", "_KIT", *own[package.name]] for code in words[part]}


def _texts(node: ast.AST) -> set[str]:
    return {word for part in ast.walk(node) for word in text(part).split()}


@pytest.mark.parametrize("package", CHECKS, ids=name)
def test_the_gang_controller_counts_every_code_of_a_check_by_its_name(package: Path) -> None:
    assert not codes(package) - counted(package)


def test_the_gang_controller_counts_every_error_of_dcgms_table_by_its_name() -> None:
    table = (ROOT / "packages/check-dcgm/src/check_dcgm/errors.toml").read_text()
    known = {word for node in nodes(GANG_CODES) for word in text(node).split()}
    assert not {one for one in re.findall(r'name = "DCGM_FR_(\w+)"', table) if one not in known}


# --- variables of checks


@pytest.mark.parametrize("package", CHECKS, ids=name)
def test_a_readme_lists_the_variables_of_its_check_and_none_that_nobody_reads(
    package: Path,
) -> None:
    own, kit = settings(source(package)), settings(KIT)
    said = {one for row in table(package / "README.md", "variable") for one in quoted(row[0])}
    missing, gone = own - said, said - own - kit
    assert not missing
    assert not gone


def settings(folder: Path) -> set[str]:
    calls = (
        node for node in nodes(folder) if isinstance(node, ast.Call) and called(node) == "setting"
    )
    return {text(call.args[0]) for call in calls} - {""}


# --- values of charts


@pytest.mark.parametrize("chart", ["preflight-injector", "preflight-gang"])
def test_the_charts_readme_tells_every_value(chart: str) -> None:
    page = ROOT / "charts/README.md"
    whole = page.read_text()
    section = whole.split(f"## Values of `{chart}`")[1].split("\n## ")[0]
    said = {
        re.split(r"[.\[]", one)[0]
        for row in section.splitlines()
        if row.startswith("| `")
        for one in quoted(row)
    }
    values = (ROOT / "charts/preflight/charts" / chart / "values.yaml").read_text()
    missing = set(re.findall(r"(?m)^([A-Za-z]+):", values)) - said
    assert not missing


# --- the newcomer's walk


def test_the_walk_of_contributing_leads_to_functions_that_are_there() -> None:
    folders = {"ComputeDomain": "computedomain", "GPU scheduler": "gpu-scheduler"}
    rows = table(ROOT / "CONTRIBUTING.md", "service")
    assert len(rows) == len(SERVICES)
    for service, entry, _, _ in rows:
        member = f"preflight-{folders.get(service, service.lower())}"
        room = ROOT / "packages" / member / "src" / member.replace("-", "_")
        [(function, file), *_] = re.findall(r"`(\w+)` in `([\w/.]+)`", entry)
        assert f"def {function}(" in (room / file).read_text(), (service, entry)
