"""Rows of the matrix are read as they are meant, and what is misspelled is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from preflight_testing.matrix.facts import uuids
from preflight_testing.matrix.scenario import (
    MATRIX,
    json_schema,
    load,
    load_faults,
    load_mistakes,
    load_proofs,
)


def test_the_schema_on_disk_is_the_type_s() -> None:
    assert json.loads((MATRIX / "schema.json").read_text()) == json.loads(json.dumps(json_schema()))


def test_an_unknown_key_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[[scenario]]\nid = "a"\nfault = "f"\nsees = "s"\ncolour = "red"\nsteps = []\n')
    with pytest.raises(ValueError, match=r"x\.toml: .*colour.*scenario"):
        load(file)


def test_gpus_of_different_nodes_never_share_a_uuid() -> None:
    assert not set(uuids("node-1")) & set(uuids("node-2"))


def test_no_id_is_used_twice_in_the_files_of_one_folder(tmp_path: Path) -> None:
    row = '[[proof]]\nid = "a"\nfault = "f"\nsees = "s"\nring = "pure"\ntest = "t"\n'
    for name in ("x", "y"):
        (tmp_path / f"{name}.toml").write_text(row)
    with pytest.raises(ValueError, match="used more than once: a"):
        load_proofs(tmp_path)


def test_the_matrix_has_rows_of_every_type() -> None:
    assert load(MATRIX / "dcgm-diag.toml")
    assert load_faults()
    assert load_mistakes()
    assert load_proofs()
