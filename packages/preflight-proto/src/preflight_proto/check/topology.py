"""The topology file that NCCL gets, for every check that runs it: the settings, what the image
holds, and the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from .. import names
from .node import instance_type
from .settings import Parser, one_of, setting, text
from .verdict import Inconclusive


def _mapping() -> Parser[tuple[tuple[str, str], ...]]:
    def parse(raw: str) -> tuple[tuple[str, str], ...]:
        pairs = [item.split("=", 1) for item in raw.split(",") if item.strip()]
        if any(len(pair) != 2 or not pair[0].strip() or "/" in pair[1] for pair in pairs):
            raise ValueError
        return tuple((pair[0].strip(), pair[1].strip()) for pair in pairs)

    return Parser(
        parse,
        "a list of instance-type=file",
        "e.g. Standard_ND96isr_H100_v5=azure-ndv5.xml",
        lambda pairs: ",".join("=".join(pair) for pair in pairs),
        {
            "pattern": r"^\s*(?:[^=,]*[^=,\s][^=,]*=[^,/]*|\s*)(?:,(?:[^=,]*[^=,\s][^=,]*=[^,/]*|\s*))*$"
        },
    )


@dataclass(frozen=True)
class TopologySettings:
    """Settings of a check that runs NCCL; its own Settings extend these."""

    topology_folder: str = setting(
        names.ENV_TOPOLOGY_DIR,
        text("a folder", "a path"),
        default=names.TOPOLOGY_FILES_DIR,
        help="where the image keeps topology files",
    )
    topology_mapping: tuple[tuple[str, str], ...] = setting(
        names.ENV_TOPOLOGY_MAP,
        _mapping(),
        default=(),
        help="which of them an instance type gets when the workload brings none (NCCL_TOPO_FILE)",
    )
    instance_type: str = setting(
        "NODE_INSTANCE_TYPE",
        text("an instance type", "the node's label node.kubernetes.io/instance-type"),
        default="",
        help=f"the node's instance type, for {names.ENV_TOPOLOGY_MAP}",
    )
    instance_type_path: str = setting(
        names.ENV_INSTANCE_TYPE_PATH,
        text("a path", f"e.g. {names.INSTANCE_TYPE_PATH}"),
        default="",
        help="file with the node's instance type, where NODE_INSTANCE_TYPE is not set",
    )
    topology_path: str = setting(
        names.ENV_TOPOLOGY_PATH,
        text("a path", f"e.g. {names.TOPOLOGY_PATH}"),
        default="",
        help="file with the node's topology labels, which is written together with the instance type",
    )
    topology_fallback: str = setting(
        names.ENV_TOPOLOGY_FALLBACK,
        one_of("true", "false"),
        default="true",
        help="false: without a topology file there is no verdict; true: NCCL then finds out for itself",
    )


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """Which topology file NCCL gets: ``path`` None lets NCCL find out for itself. ``why`` is for
    people.
    """

    path: str | None
    why: str


async def find_topology(settings: TopologySettings, environ: Mapping[str, str]) -> TopologyFile:
    """Which file NCCL gets, in ADR-026's order: the workload's own, else the one of the image for
    the instance type, else none.

    Raises :class:`Inconclusive`: NO_TOPOLOGY where it must have one and there is none,
    TOPOLOGY_FILE_UNREADABLE where the workload's own is not a file of the volume that was mounted
    for it.
    """
    if own := environ.get("NCCL_TOPO_FILE", ""):
        if origin := environ.get(names.ENV_USER_TOPOLOGY, ""):
            await _within(own, origin)
        return TopologyFile(own, f"{origin or own}, the workload's NCCL_TOPO_FILE")
    kind, mapping = settings.instance_type, dict(settings.topology_mapping)
    if not kind and mapping and settings.instance_type_path:
        kind = await instance_type(settings.instance_type_path, settings.topology_path)
    chosen = await _mapped(kind, mapping, settings.topology_folder)
    if chosen.path is None and settings.topology_fallback == "false":
        raise Inconclusive(
            "NO_TOPOLOGY",
            f"NCCL must have a topology file (ncclTopology.enableFallback is false), and what is left is {chosen.why}; "
            "map the instance type to a file of the image in ncclTopology.instanceTypeMapping, or set enableFallback.",
        )
    return chosen


async def _mapped(kind: str, mapping: Mapping[str, str], folder: str) -> TopologyFile:
    """The file of the image for the instance type ``kind``."""
    own = "NCCL's own detection"
    if not mapping:
        return TopologyFile(None, f"{own}, as no instance type is mapped to a file")
    if not kind:
        return TopologyFile(None, f"{own}, as the node's instance type is not known")
    if (name := mapping.get(kind)) is None:
        return TopologyFile(None, f"{own}, as the instance type {kind} is not mapped to a file")
    if name in await _files(folder):
        return TopologyFile(f"{folder}/{name}", f"{folder}/{name} for the instance type {kind}")
    why = not_built_in().get(name, f"there is none in {folder}")
    return TopologyFile(None, f"{own} instead of {name} for the instance type {kind}: {why}")


async def _within(path: str, origin: str) -> None:
    """The volume is the workload's: what it holds may be a link to a file of ours, or a pipe on
    which NCCL would wait for ever.
    """
    mount = anyio.Path(names.USER_TOPOLOGY_DIR)
    try:
        real = await anyio.Path(path).resolve(strict=True)
        fits = real.is_relative_to(mount) and await real.is_file()
        why = "" if fits else "is not a regular file of the volume that holds it"
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        why = f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
    if why:
        raise Inconclusive(
            "TOPOLOGY_FILE_UNREADABLE",
            f"the workload's NCCL_TOPO_FILE {origin} {why}; correct or remove NCCL_TOPO_FILE.",
        )


def not_built_in() -> dict[str, str]:
    """Files of known platforms that the images do not carry, and why not."""
    import tomllib  # once it is known that a tool is to run
    from importlib.resources import files

    known = tomllib.loads((files(__package__) / "topologies.toml").read_text())
    return {name: about["absent"] for name, about in known.items() if "absent" in about}


async def _files(folder: str) -> frozenset[str]:
    try:
        return frozenset([entry.name async for entry in anyio.Path(folder).iterdir()])
    except OSError:
        return frozenset()
