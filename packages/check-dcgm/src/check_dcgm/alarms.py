"""Known false alarms of DCGM, and what an error's own words say: ``known.toml``."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from .catalogue import with_tuples
from .parse import DocumentProblem

Effect = Literal["inconclusive", "not tested", "fatal", "hang"]

_LOST = re.compile(
    r"fallen off the bus|\bGPU (?:is|was|has been) lost|\blost (?:the |a )?GPU\b|no longer reachable",
    re.IGNORECASE,
)
_FAULTY = re.compile(
    r"\bfaulty memory\b|\bmiscompare|\bunsuccessfully (?:written|wrote)", re.IGNORECASE
)
_ECC = re.compile(
    r"\bECC error|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable|\buncorrect(?:able|ed)\b[^.]{0,30}\b(?:ECC|memory|error)|double[- ]bit|\bDBEs?\b|\becc_dbe_\w+ for GPU\b",
    re.IGNORECASE,
)
_NVLINK = re.compile(
    r"CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable|\bNVLink\b[^.]{0,60}\b(?:errors?|down|fail(?:ed|ure)?|fatal|inactive)\b|\b(?:errors?|fail(?:ed|ure)?)\b[^.]{0,40}\bNVLink\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"\bDetected (\d+) xid_errors\b")
"""How DCGM up to 3.1 says it."""
_HARMLESS = re.compile(
    r"single[- ]bit|(?<!un)correctable|\bECC is (?:not|disabled)|(?:\b0|\bno|\bzero) (?:[\w-]+ ){0,4}(?:ECC|DBE|NVLink|double)|not supported",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a row may depend on besides the problem: the engine's version, the driver's, the GPU's
    product name.
    """

    dcgm: str = ""
    driver: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class KnownAlarm:
    """One row of ``known.toml``."""

    name: str
    effect: Effect
    says: str
    link: str
    tests: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    unless: tuple[int, ...] = ()
    text: str = ""
    since: str = ""
    below: str = ""
    driver: int = 0
    models: str = ""
    code: str = ""
    """Of the verdict, in place of the error's name."""
    action: str = ""
    """In place of that of the test."""

    def applies(self, around: Circumstances) -> bool:
        """Whether the versions and the model are those of the row; an unknown one is not."""
        dcgm, driver = version(around.dcgm), version(around.driver)
        return not (
            (self.since and (not dcgm or dcgm < version(self.since)))
            or (self.below and (not dcgm or dcgm >= version(self.below)))
            or (self.driver and (not driver or driver[0] < self.driver))
            or (self.models and not re.search(self.models, around.model))
        )


@cache
def rows() -> tuple[KnownAlarm, ...]:
    """The rows, in the order in which they are asked."""
    raw = tomllib.loads((files(__package__) / "known.toml").read_text())["row"]
    return tuple(KnownAlarm(**with_tuples(row)) for row in raw)


def explains(test: str, problem: DocumentProblem, around: Circumstances) -> KnownAlarm | None:
    """The first row that knows this problem of the test ``test`` (its canonical name)."""
    text = _COUNTED.sub(r"Detected XID \1", problem.text)
    for row in rows():
        if (
            row.effect != "hang"
            and (not row.tests or test in row.tests)
            and (not row.ids or problem.error_id in row.ids)
            and problem.error_id not in row.unless
            and (not row.text or re.search(row.text, text, re.IGNORECASE))
            and row.applies(around)
        ):
            return row
    return None


def hang(around: Circumstances) -> KnownAlarm | None:
    """Why a diagnostic under these circumstances may never end."""
    return next((row for row in rows() if row.effect == "hang" and row.applies(around)), None)


def names_a_fault(text: str) -> bool:
    """Whether the words name an uncorrectable memory error, a broken NVLink or a lost GPU."""
    if _LOST.search(text) or _FAULTY.search(text):
        return True
    return bool((_ECC.search(text) or _NVLINK.search(text)) and not _HARMLESS.search(text))


def version(text: str) -> tuple[int, ...]:
    """The numbers of a version; empty where it has none."""
    match = re.match(r"\s*(\d+(?:\.\d+)*)", text)
    return tuple(int(number) for number in match[1].split(".")) if match else ()
