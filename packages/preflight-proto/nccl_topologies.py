"""Make the topology files under ``nccl-topologies`` from what ``check/topologies.toml`` knows of
each platform.

Running it twice changes nothing. The images of both NCCL checks carry the folder as
/opt/nvsentinel/nccl-topologies.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
FACTS = HERE / "src" / "preflight_proto" / "check" / "topologies.toml"
OUT = HERE / "nccl-topologies"

# PCI classes as NCCL compares them (graph/xml.cc): bridge, 3D controller, and the two kinds of
# network card.
_SWITCH, _GPU = "0x060400", "0x030200"
_CARD = {"infiniband": "0x020700", "ethernet": "0x020000"}


def document(facts: Mapping[str, Any]) -> str:
    """One platform as NCCL reads it."""
    link = {"link_speed": facts["link"]["speed"], "link_width": str(facts["link"]["width"])}
    hidden = count(1)
    system = ElementTree.Element("system", version="1")
    for node in facts["numa"]:
        about = {name: str(value) for name, value in facts["cpu"].items()}
        cpu = ElementTree.SubElement(system, "cpu", {"numaid": str(node["id"]), **about})
        for switch in node["switches"]:
            address = f"ffff:ff:{next(hidden):02x}.0" if switch["at"] == "virtual" else switch["at"]
            above = ElementTree.SubElement(cpu, "pci", {"busid": address, "class": _SWITCH, **link})
            devices = [(one, _GPU) for one in switch["gpus"]] + [
                (one, _CARD[facts["card"]]) for one in switch["cards"]
            ]
            for device, kind in devices:
                ElementTree.SubElement(above, "pci", {"busid": device, "class": kind, **link})
    ElementTree.indent(system)
    text = ElementTree.tostring(system, encoding="unicode").replace(
        " />", "/>"
    )  # NCCL takes the space for an attribute
    return f"<!-- {facts['about']}. Made from {facts['source']}. -->\n{text}\n"


def main() -> None:
    """Write every file that can be had, and remove all others."""
    known = tomllib.loads(FACTS.read_text())
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.xml"):
        old.unlink()
    for name, facts in known.items():
        if "absent" not in facts:
            (OUT / name).write_text(document(facts))


if __name__ == "__main__":
    main()
