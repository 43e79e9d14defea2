"""Which GPUs were allotted, and which of them are not there: from what NVML, nvidia-smi, /proc, the
PCI bus and the runtime say.

Pure: the facts are read by :mod:`.gpus`. A GPU that is missing is a finding, never "could not
judge": the pod would start without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .verdict import NODE, Action, Finding, Outcome, Subject, Verdict

PRESENCE = "Presence"
"""The test of a GPU's subject that ``GPU_MISSING`` raises; a passing run of the same check on that
GPU clears it.
"""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]*")
_REPLICA = re.compile(r"::\d+$")
_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_PLACE = re.compile(r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
_LOST = re.compile(
    r"\bGPU is lost|fallen off|unknown error|requires re(?:set|start)|ERR!", re.IGNORECASE
)
_REFUSED = re.compile(r"\binsufficient permissions\b", re.IGNORECASE)
_LISTED = re.compile(r"^\s*\d+, *(?:GPU|MIG)-")


@dataclass(frozen=True, slots=True)
class MissingDevice:
    """A GPU that was allotted and is not there. ``uuid`` and ``pci_bus_id`` are empty where nobody
    names them.

    ``lost``: who says that it is lost (``NVML``, ``nvidia-smi``, ``PCI``), in words.
    ``conclusive``: one of them suffices by itself, as NVML's own "GPU is lost" does.
    """

    uuid: str = ""
    pci_bus_id: str = ""
    lost: Mapping[str, str] = field(default_factory=dict)
    conclusive: bool = False

    @property
    def fatal(self) -> bool:
        """Two sources say that it is lost, or one that cannot be wrong about it."""
        return self.conclusive or len(self.lost) >= 2

    @property
    def name(self) -> str:
        """What people find it by; empty where nobody names it."""
        if self.uuid:
            return f"{self.uuid} ({self.pci_bus_id})" if self.pci_bus_id else self.uuid
        return f"the GPU at {self.pci_bus_id}" if self.pci_bus_id else ""


@dataclass(frozen=True, slots=True)
class PresenceEvidence:
    """What was read besides the list of GPUs; addresses as :func:`address` writes them.

    ``allotted``: UUIDs that the runtime gave the container, in its order. ``driver``: address →
    UUID of /proc/driver/nvidia, where a UUID is empty when the driver no longer knows it. ``lost``:
    address (or NVML's ``index N``) → who says that the GPU there does not answer (``NVML``,
    ``nvidia-smi``, ``PCI``) → in what words. ``conclusive``: those that NVML calls lost.
    ``refused``: how many GPUs NVML may not show this container.
    """

    allotted: tuple[str, ...] = ()
    driver: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    conclusive: frozenset[str] = frozenset()
    refused: int = 0


def address(text: str) -> str:
    """A PCI address as the kernel writes it, ``0000:1b:00.0``; the text itself where it is none."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return text.strip().lower()
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower()


def allotted(visible: str, mounted: Sequence[str] = ()) -> tuple[tuple[str, ...], bool]:
    """The UUIDs that the runtime was asked for, each once, and whether one was asked for twice (a
    GPU that is shared by time).

    ``visible`` is NVIDIA_VISIBLE_DEVICES; ``mounted`` are the names in
    /var/run/nvidia-container-devices. Indices, ``all``, ``none`` and ``void`` name nobody.
    """
    words = [*visible.split(","), *mounted]
    asked = [_REPLICA.sub("", word.strip()) for word in words]
    uuids = [word for word in asked if _UUID.fullmatch(word)]
    from_variable = [word for word in asked[: len(visible.split(","))] if _UUID.fullmatch(word)]
    return tuple(dict.fromkeys(uuids)), len(set(from_variable)) < len(from_variable)


def parse_information(text: str) -> tuple[str, str]:
    """(address, UUID) of a /proc/driver/nvidia/gpus/*/information; the UUID is empty where the
    driver prints question marks.
    """
    fields = dict(line.partition(":")[::2] for line in text.splitlines() if ":" in line)
    uuid = fields.get("GPU UUID", "").strip()
    return address(fields.get("Bus Location", "")), uuid if _UUID.fullmatch(uuid) else ""


def parse_unreachable(output: str) -> dict[str, str]:
    """Address → words for each GPU that nvidia-smi's ``output`` says it cannot reach: it is lost,
    needs a reset, or answers with an unknown error.

    By a sentence, as ``Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown
    Error``, or by a row whose UUID is ``[GPU is lost]``.
    """
    lost = {}
    for line in output.splitlines():
        match = _PLACE.search(line) if len(line) < 1000 else None
        if match is not None and _LOST.search(line) and not _LISTED.match(line):
            lost[address(match[1])] = line.strip()[:200]
    return lost


def refused(output: str) -> int:
    """How many GPUs nvidia-smi's ``output`` says it has no permission to talk to."""
    lines = [line for line in output.splitlines() if len(line) < 1000 and not _LISTED.match(line)]
    return sum(bool(_REFUSED.search(line) and _PLACE.search(line)) for line in lines)


def missing(
    seen: Mapping[str, str], expected: int | None, evidence: PresenceEvidence
) -> tuple[MissingDevice, ...]:
    """The allotted GPUs that are not among ``seen`` (UUID → address). Empty when there are as many
    as were allotted.
    """
    here = {address(pci) for pci in seen.values()}
    named = [uuid for uuid in evidence.allotted if uuid not in seen]
    by_uuid = {uuid: pci for pci, uuid in evidence.driver.items() if uuid}
    bad = [pci for pci in evidence.lost if pci not in here]
    number = max((expected or 0) - len(seen), len(named))
    if not evidence.allotted:
        # Without names: the driver's own list, where it has exactly the GPUs that this container
        # was given.
        absent = [
            uuid
            for pci, uuid in evidence.driver.items()
            if uuid and uuid not in seen and pci not in here
        ]
        named = absent if len(evidence.driver) == expected and len(absent) <= number else []
    elif not named and len(seen) <= len(evidence.allotted):
        return ()  # all that were named are here: something asked for the same GPU twice
    places = {uuid: by_uuid[uuid] for uuid in named if uuid in by_uuid}
    # By elimination: as many places are left as names.
    nameless = [uuid for uuid in named if uuid not in places]
    taken = {*places.values(), *here}
    left = [
        pci
        for pci in bad
        if pci not in taken and not pci.startswith("index ") and not evidence.driver.get(pci)
    ]
    left += [
        pci
        for pci, uuid in evidence.driver.items()
        if not uuid and pci not in taken and pci not in left
    ]
    if len(left) == len(nameless):
        places |= dict(zip(nameless, left, strict=True))
    devices = [_missing(uuid, places.get(uuid, ""), evidence) for uuid in named]
    spare = [pci for pci in bad if pci not in places.values() and not pci.startswith("index ")]
    while len(devices) < number:
        devices.append(_missing("", spare.pop(0) if spare else "", evidence))
    return _by_index(devices, evidence)


def forbidden(
    gone: Sequence[MissingDevice], evidence: PresenceEvidence
) -> tuple[MissingDevice, ...]:
    """Those of ``gone`` that may be there: NVML has refused to show as many, nobody calls them
    lost, and the driver, where its list can be seen, has each that has a name.
    """
    known = {uuid for uuid in evidence.driver.values() if uuid}
    there = [
        device
        for device in gone
        if not device.lost and (not known or not device.uuid or device.uuid in known)
    ]
    return tuple(there) if len(there) <= evidence.refused else ()


def _by_index(
    devices: list[MissingDevice], evidence: PresenceEvidence
) -> tuple[MissingDevice, ...]:
    """NVML's errors that came before an address was known belong to those of whom it has said
    nothing, where the numbers agree and NVML has refused none, which would be silent too.
    """
    errors = [where for where in evidence.lost if where.startswith("index ")]
    silent = [device for device in devices if "NVML" not in device.lost]
    kinds = {where in evidence.conclusive for where in errors}
    if not errors or len(errors) != len(silent) or len(kinds) > 1 or evidence.refused:
        return tuple(devices)
    words = {id(device): evidence.lost[where] for device, where in zip(silent, errors, strict=True)}
    return tuple(
        replace(
            device,
            lost={**words[id(device)], **device.lost},
            conclusive=device.conclusive or True in kinds,
        )
        if id(device) in words
        else device
        for device in devices
    )


def _missing(uuid: str, pci: str, evidence: PresenceEvidence) -> MissingDevice:
    return MissingDevice(uuid, pci, evidence.lost.get(pci, {}), pci in evidence.conclusive)


def verdict(gone: Sequence[MissingDevice], expected: int, seen: Sequence[str]) -> Verdict:
    """Failed ``GPU_MISSING``: one finding for each GPU with a name, one about the node for those
    without.
    """
    findings: list[Finding] = []
    for device in gone:
        subject = Subject(PRESENCE, device.uuid) if device.uuid else NODE
        metadata = {
            "pci_bus_id": device.pci_bus_id,
            **{f"lost_by_{who}": words for who, words in device.lost.items()},
        }
        finding = Finding(
            "GPU_MISSING",
            f"GPU_MISSING: {device.uuid or 'a GPU'} was allotted and the driver does not list it",
            fatal=device.fatal,
            action=Action.CONTACT_SUPPORT,
            subject=subject,
            metadata={key: value for key, value in metadata.items() if value},
        )
        same = next((f for f in findings if f.subject == subject), None)
        if same is None:
            findings.append(finding)
        elif finding.fatal and not same.fatal:
            findings[findings.index(same)] = finding
    named = [device.name for device in gone if device.name]
    others = len(gone) - len(named)
    if others:
        named.append(f"{others} GPU{'s' if others > 1 else ''} that nobody names")
    reasons = "; ".join(f"{who}: {words}" for device in gone for who, words in device.lost.items())
    why = f" ({reasons})" if reasons else ""
    reason = (
        f"the pod was given {expected} GPU(s) and the driver lists {len(seen)}; missing: {', '.join(named)}{why}; "
        "see the driver's log on the node (dmesg, Xid) and restart the node."
    )
    return Verdict(Outcome.FAILED, "GPU_MISSING", reason, tuple(findings), subject=gone[0].uuid)
