"""The AdmissionReview envelope: what of bytes is a review, and what an API server
gets in answer.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_world import Item
from preflight_kube.admission.review import Alike, BadReview, Response, decode, encode, uid_of
from preflight_kube.api.jsonpatch import add

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"
POD = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "labels": {"x": "y"}}}


def review(**request: Any) -> dict[str, Any]:
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": UID,
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "operation": "UPDATE",
            "name": "a",
            "namespace": "ns",
            "userInfo": {"username": "me", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}},
            "object": POD,
            "oldObject": {**POD, "data": {"k": "old"}},
            "dryRun": True,
            **request,
        },
    }


def body(**request: Any) -> bytes:
    return json.dumps(review(**request)).encode()


def refused(data: bytes) -> str:
    with pytest.raises(BadReview) as raised:
        decode(data)
    return str(raised.value)


def answered(response: Response) -> dict[str, Any]:
    found = json.loads(encode(UID, response))
    assert (found["kind"], found["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    assert found["response"].pop("uid") == UID
    answer: dict[str, Any] = found["response"]
    return answer


def test_a_request_has_what_the_api_server_says_of_it() -> None:
    given = review(subResource="scale", requestKind={"group": "apps", "kind": "Deployment"})
    request = decode(json.dumps(given).encode())
    known = {key: value for key, value in given["request"].items() if key != "requestKind"}
    assert json.loads(msgspec.json.encode(request)) == known
    assert request.new(Item).metadata.labels == {"x": "y"}
    assert request.old(Item).data == {"k": "old"}
    assert request.new(dict) == POD


def test_an_object_that_is_not_there_is_said_by_its_place() -> None:
    request = decode(body(operation="DELETE", object=None))
    with pytest.raises(BadReview, match=r"^request.object is missing$"):
        request.new(Item)
    assert request.old(Item).metadata.name == "a"
    created = review(operation="CREATE")
    del created["request"]["oldObject"]
    with pytest.raises(BadReview, match=r"^request.oldObject is missing$"):
        decode(json.dumps(created).encode()).old(Item)


def test_an_object_of_another_shape_is_said_with_the_path_in_it() -> None:
    request = decode(body(object={"metadata": {"name": 1}}))
    with pytest.raises(
        BadReview,
        match=r"request.object is not a Item \(Expected `str`, got `int` - at `\$.metadata.name`\)",
    ):
        request.new(Item)


def test_an_object_nested_too_deep_is_said_to_be() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert "nested deeper than" in refused(body().replace(json.dumps(POD).encode(), deep, 1))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body is not an AdmissionReview"),
        (b"{}", "the body is not an AdmissionReview"),
        (b"[]", "the body is not an AdmissionReview"),
        (b"\xff", "the body is not an AdmissionReview"),
        (
            b'{"kind": "Pod", "apiVersion": "v1"}',
            "the body is not an AdmissionReview",
        ),
        (
            json.dumps({**review(), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            "the body is admission.k8s.io/v1beta1 AdmissionReview, expected admission.k8s.io/v1 AdmissionReview",
        ),
        (body(operation="PATCH"), "Invalid enum value 'PATCH'"),
        (body(uid=None), "the body is not an AdmissionReview"),
    ],
)
def test_what_is_not_a_review_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    assert said in refused(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_review_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except BadReview as error:
        assert "\n" not in str(error)


def test_a_request_is_allowed_as_it_is_unless_the_application_says_otherwise() -> None:
    assert answered(Response()) == {"allowed": True}


def test_a_patch_is_operations_or_text_in_base64() -> None:
    operations = [add("/metadata/labels/a", "b")]
    for patch in (operations, json.dumps(operations).encode()):
        answer = answered(Response(patch=patch))
        assert (answer["allowed"], answer["patchType"]) == (True, "JSONPatch")
        assert json.loads(base64.b64decode(answer["patch"])) == operations


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (403, "Forbidden"),
        (422, "Invalid"),
        (400, "BadRequest"),
        (413, "Forbidden"),
    ],
)
def test_a_refusal_has_a_status_and_no_patch(code: int, reason: str) -> None:
    answer = answered(
        Response(allowed=False, message="because\nof it", code=code, patch=[add("/a", 1)])
    )
    assert answer == {
        "allowed": False,
        "status": {"code": code, "reason": reason, "message": "because of it"},
    }
    assert answered(Response.denied("no", warnings=["w"]))["warnings"] == ["w"]


def test_warnings_and_messages_are_bounded_lines() -> None:
    answer = answered(Response(warnings=["x\n" * 5000] * 40))
    assert len(answer["warnings"]) == 16
    assert all(len(one) <= 1024 and "\n" not in one for one in answer["warnings"])


def test_the_uid_of_a_review_is_in_its_beginning_as_an_api_server_writes_it() -> None:
    assert uid_of(body()[:200]) == UID
    assert (
        uid_of(
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"abc"'
        )
        == "abc"
    )
    assert uid_of(b'{"kind":"Pod","apiVersion":"v1","request":{"uid":"abc"') == ""
    assert uid_of(b"") == ""


def test_what_was_read_of_a_text_is_kept_for_its_like_within_bounds() -> None:
    alike = Alike[int]()
    alike.keep(b"aaa", 1)
    alike.keep(b"aaaa", 2)
    assert [alike.get(text) for text in (b"aaa", b"aaaa", b"aab", b"")] == [1, 2, None, None]
    alike.keep(b"aab", 3)  # the last of its length
    assert [alike.get(text) for text in (b"aaa", b"aab")] == [None, 3]
    large = b"x" * (Alike.LONGEST + 1)
    alike.keep(large, 4)
    assert alike.get(large) is None
    for length in range(5, 5 + Alike.LENGTHS - 1):
        alike.keep(b"b" * length, length)
    assert [alike.get(text) for text in (b"aab", b"aaaa", b"b" * 5)] == [None, 2, 5]
