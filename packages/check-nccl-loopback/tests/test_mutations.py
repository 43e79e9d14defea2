"""Mutated output of nccl-tests: no traceback, and nothing whose true figure is below the floor
passes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import documents
import pytest
from check_nccl_loopback import floors
from check_nccl_loopback.floors import LinkClass
from check_nccl_loopback.judge import Progress, Step, StepKind, StepResult, decide
from check_nccl_loopback.measurement import read
from hypothesis import settings
from nodes import GIB, H100, gpus
from preflight_proto.check import Outcome, Verdict

FLOOR = floors.find(H100, 8, LinkClass.NVLINK, GIB)
TRUE = 112.0
"""GB/s that the run reached; the floor is 400."""


def output(era: str) -> str:
    """Eight H100 of which one is slow: a sweep whose large size reached 112 GB/s, while other sizes
    print whatever they do.
    """
    rows = []
    for size in (8, 1 << 20, 1 << 28, GIB):
        bus = max(TRUE * size / (size + (27 << 20)), 0.01) if size < GIB else TRUE
        algbw = bus / 1.75
        half = f"  {size / algbw / 1e3:7.1f}  {algbw:6.2f}  {bus:6.2f}      0"
        rows.append(f"{size:12}  {size // 4:12}     float     sum      -1{half}{half}")
    text = documents.NEWEST if era == "newest" else documents.SINCE_2_13
    return text.replace(documents.ROW_13, "\n".join(rows))


def written() -> str:
    halves = {
        "time": GIB / (TRUE / 1.75) / 1e3,
        "alg_bw": TRUE / 1.75,
        "bus_bw": TRUE,
        "nwrong": 0.0,
    }
    row = {
        "size": GIB,
        "count": GIB // 4,
        "type": "float",
        "redop": "sum",
        "root": "-1",
        "out_of_place": halves,
    }
    document = {
        "version": 3,
        "nccl_version": 22807,
        "results": [row | {"in_place": halves}],
        "out_of_bounds": {"count": 0},
    }
    return json.dumps(document)


def _digits(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text))
    return text[:at] + dice.choice("0123456789.-e# \n") + text[at + 1 :]


def _words(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    words[dice.randrange(len(words))] = dice.choice(
        ["466.57", "1073741824", "0", "4030", "266.6", "N/A", "float", "#", ""]
    )
    return " ".join(words)


def _lines(text: str, dice: random.Random) -> str:
    lines = text.splitlines()
    one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    match dice.randrange(4):
        case 0:
            del lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case _:
            lines[one] = lines[one][: dice.randrange(len(lines[one]) + 1)] + lines[other]
    return "\n".join(lines)


def _cut(text: str, dice: random.Random) -> str:
    one, other = sorted((dice.randrange(len(text)), dice.randrange(len(text))))
    return text[:one] + text[other:] if dice.random() < 0.5 else text[:other]


MUTATIONS: list[Callable[[str, random.Random], str]] = [_digits, _words, _lines, _cut]


@pytest.mark.parametrize("era", ["newest", "2.13", "json"])
def test_no_mutation_of_a_slow_run_passes(era: str) -> None:
    assert FLOOR is not None
    dice, passed = random.Random(17), []
    everyone = tuple(range(8))
    for _ in range(10 * settings().max_examples):
        text, document = output(era), written() if era == "json" else ""
        for _ in range(dice.choice([1, 1, 2, 3])):
            mutate = dice.choice(MUTATIONS)
            if document and dice.random() < 0.7:
                document = mutate(document, dice)
            else:
                text = mutate(text, dice)
        result = read(text, "", 0, GIB, gpus=8, document=document)
        step = Step(StepKind.ALL, everyone, GIB)
        seen = decide(
            Progress(
                gpus(8),
                GIB,
                {GIB: FLOOR},
                comparable=True,
                results=(StepResult(step, result),),
                exhausted=True,
            )
        )
        if isinstance(seen, Verdict) and seen.outcome is Outcome.PASSED:
            passed.append((text, document))
    assert not passed


def test_the_unmutated_output_of_a_healthy_run_passes() -> None:
    assert FLOOR is not None
    text = output("2.13").replace(f"{TRUE:6.2f}", "466.55").replace(f"{TRUE / 1.75:6.2f}", "266.60")
    text = text.replace(f"{GIB / (TRUE / 1.75) / 1e3:7.1f}", " 4027.5")
    result = read(text, "", 0, GIB, gpus=8)
    assert (result.contradiction, result.busbw) == ("", 466.55)
