"""What a JSON Schema finds wrong with the data of a YAML file, in sentences."""

from __future__ import annotations

import pytest
import yaml
from preflight_kube.files.schema import problems

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"sweep": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("1: 2", ["1: unknown key; known here are count, sweep."]),
        (
            "on: 2\n7: 2",
            ["7: unknown key; known here are count, sweep.", "True: unknown key; remove it."],
        ),
        (
            "null: 2\nswep: 5s",
            [
                "None: unknown key; known here are count, sweep.",
                "swep: unknown key; write sweep instead, or remove it.",
            ],
        ),
        ("2026-01-01: 2", ["2026-01-01: unknown key; known here are count, sweep."]),
        ("sweep: 2026-01-01", ["sweep: must be a string; found the date 2026-01-01."]),
        ("count: 0", ["count: must be at least 1; found the number 0."]),
        (
            "count: 1.5\nsweep: 5",
            [
                "count: must be a whole number; found the number 1.5.",
                'sweep: must be a string, e.g. "5" in quotes; found the number 5.',
            ],
        ),
        ("[]", ["the file: must be a map; found an empty list."]),
    ],
)
def test_every_problem_of_a_file_is_said_though_its_keys_are_no_texts(
    text: str, sentences: list[str]
) -> None:
    assert problems(SCHEMA, yaml.safe_load(text), "the file") == sentences
