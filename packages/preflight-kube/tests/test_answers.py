"""What counts as an API server's answer to a write: anything else leaves open what became of it."""

from __future__ import annotations

import pytest
from preflight_kube.answers import known
from preflight_kube.errors import KubeError

OBJECT = b'{"kind": "Pod", "metadata": {"name": "p", "resourceVersion": "7"}}'
DONE = b'{"kind": "Status", "status": "Success", "metadata": {}}'
PAGE = b"<html>welcome</html>"


def test_an_object_is_what_a_write_is_answered_with() -> None:
    known(201, OBJECT, "create")


def test_a_bare_status_of_success_answers_only_who_expects_one() -> None:
    known(201, DONE, "create", bare=True)
    with pytest.raises(KubeError, match="is not an object"):
        known(201, DONE, "create")


@pytest.mark.parametrize("body", [PAGE, OBJECT, b'{"kind": "Status", "status": "Failure"}', b""])
def test_who_expects_a_status_takes_nothing_else_for_success(body: bytes) -> None:
    with pytest.raises(KubeError) as error:
        known(201, body, "create", bare=True)
    assert error.value.status == 0
