"""Whatever is in a manifest, `explain -f` ends with a status and sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from preflight_mnnvl.cli import main
from preflight_testing.documents import ended, mutants

FIXTURES = Path(__file__).parent / "fixtures"
MANIFEST = (FIXTURES / "e3-scalable-inference.yaml").read_text()


@pytest.mark.parametrize("form", ["text", "json"])
@settings(max_examples=2 * settings().max_examples)
@given(manifest=mutants(MANIFEST))
def test_a_manifest_that_is_almost_right_is_explained_or_refused_in_sentences(
    form: str, manifest: str
) -> None:
    found = ended(main, "explain", "-f", "-", "-o", form, stdin=manifest)
    assert found.status in {0, 1, 2}
    assert found.status == 0 or found.err or found.out
    assert found.harmless
