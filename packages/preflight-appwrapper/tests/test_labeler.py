"""The labeler's default conditions beside the fault matrix of the checks."""

from __future__ import annotations

import pytest
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.node_labels import first_bad
from preflight_kube.api.node_health import NodeCondition
from preflight_testing.matrix.scenario import fatal_subjects

FATAL = sorted({condition for condition, _ in fatal_subjects()})
"""The node conditions that fatal findings of the checks become."""


def test_the_matrix_has_fatal_conditions_of_every_check() -> None:
    for prefix in ("DcgmDiagnostic", "NCCLLoopbackTest", "NCCLAllReduceTest"):
        assert any(one.startswith(prefix) for one in FATAL)


@pytest.mark.parametrize("condition", FATAL)
def test_every_fatal_condition_of_the_matrix_makes_a_node_one_to_leave(condition: str) -> None:
    assert first_bad([NodeCondition(type=condition, status="True")], NodeHealthConfig())
    assert not first_bad([NodeCondition(type=condition, status="False")], NodeHealthConfig())
