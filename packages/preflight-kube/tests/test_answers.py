"""What counts as an API server's answer to a write: anything else leaves open what became of it."""

from __future__ import annotations

import pytest
from preflight_kube.client.responses import known, refusal
from preflight_kube.errors import KubeError, NotFound

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


def absent(name: str) -> bytes:
    """As a real kube-apiserver says it."""
    words = f'pods \\"{name}\\" not found'
    front = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    rest = f'"reason":"NotFound","details":{{"name":"{name}","kind":"pods"}},"code":404}}'
    return f'{front}"message":"{words}",{rest}\n'.encode()


@pytest.mark.parametrize("length", [10, 20_000, 40_000, 70_000, 1_000_000])
def test_an_object_that_is_not_there_is_absent_however_long_its_name(length: int) -> None:
    error = refusal(404, absent("p" * length), "get")
    assert isinstance(error, NotFound)
    assert error.reason == "NotFound"


def test_a_proxys_page_of_any_length_says_nothing_of_what_there_is() -> None:
    for page in (PAGE, PAGE * 10_000, b'{"kind":"Status","apiVersion":"v1","message":"not here'):
        error = refusal(404, page, "get")
        assert not isinstance(error, NotFound)
        assert "does a proxy stand in between?" in str(error)
