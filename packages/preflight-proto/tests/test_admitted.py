"""What was known of a pod's claims at admission, and when the pod got others."""

from __future__ import annotations

import pytest
from preflight_proto.admitted import (
    Admitted,
    ContractError,
    SeenClaim,
    decode_admitted,
    encode_admitted,
    swapped,
)

CLAIM = SeenClaim(kind="ResourceClaim", name="train", uid="u1", gpu=True)
TEMPLATE = SeenClaim(kind="ResourceClaimTemplate", name="train", uid="t1", gpu=True)
OTHER = SeenClaim(kind="ResourceClaim", name="train", uid="u1", gpu=False)


def test_it_reads_back_as_it_was_written() -> None:
    admitted = Admitted(v=1, claims={"a": CLAIM, "b": TEMPLATE})
    assert decode_admitted(encode_admitted(admitted)) == admitted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"v":2,"claims":{}}',
        '{"v":1,"claims":{"a":{"kind":"Pod","name":"","uid":"","gpu":true}}}',
    ],
)
def test_what_cannot_be_read_is_one_sentence(text: str) -> None:
    with pytest.raises(ContractError, match=r"^claims at admission: "):
        decode_admitted(text)


@pytest.mark.parametrize(
    ("seen", "uid", "gpu", "expected"),
    [
        (CLAIM, "u1", True, False),
        (CLAIM, "u2", True, True),  # made again under its name
        (TEMPLATE, "u2", True, False),  # a claim of a template has a uid of its own
        (OTHER, "u1", True, True),
        (OTHER, "u2", False, False),
        (None, "u1", True, True),
        (None, "u1", False, False),
        (
            SeenClaim(kind="ResourceClaim", name="train", uid="", gpu=True),
            "u1",
            True,
            False,
        ),  # not there at admission
    ],
)
def test_gpus_that_nobody_decided_about_are_told(
    seen: SeenClaim | None, uid: str, gpu: bool, expected: bool
) -> None:
    assert swapped(seen, uid, gpu=gpu) is expected
