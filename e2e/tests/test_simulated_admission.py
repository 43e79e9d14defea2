"""Admission of the simulated cluster: a webhook is asked over TLS, its patch is applied, its
refusal is passed on.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from preflight_e2e.json_server import JsonHandler
from preflight_e2e.simcluster.admission import OPT_IN, SimulatedAdmission
from preflight_testing.apidouble import ApiDouble

PATCH = [{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]


class Webhook:
    """Answers every review by ``answer``, and keeps what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {
            "allowed": True,
            "patch": base64.b64encode(json.dumps(PATCH).encode()).decode(),
        }
        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self.ca = folder / "ca.crt"
        authority.cert_pem.write_to_path(self.ca)
        webhook = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                webhook.asked.append(review["request"])
                self.answer({"response": {"uid": review["request"]["uid"], **webhook.answer}})

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_port}/mutate-pod"


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    one = Webhook(tmp_path)
    thread = threading.Thread(target=one.server.serve_forever)
    thread.start()
    yield one
    one.server.shutdown()
    thread.join()
    one.server.server_close()


@pytest.fixture
def api(webhook: Webhook) -> Iterator[ApiDouble]:
    with ApiDouble() as double:
        double.admit = SimulatedAdmission(
            double.api, webhook.url, webhook.ca, lambda pod: sorted(pod["spec"].get("odd", []))
        )
        labels = dict([OPT_IN])
        double.within(
            lambda: double.create("namespaces", {"metadata": {"name": "in", "labels": labels}})
        )
        yield double


@pytest.fixture
def post(api: ApiDouble) -> Callable[..., tuple[int, dict[str, Any]]]:
    def post(namespace: str, **spec: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode()
        request = urllib.request.Request(f"{api.url}/api/v1/namespaces/{namespace}/pods", data=body)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return post


Post = Callable[..., tuple[int, dict[str, Any]]]


def test_the_webhooks_patch_is_in_what_is_stored(post: Post, webhook: Webhook) -> None:
    code, pod = post("in")
    assert (code, pod["metadata"]["labels"]) == (201, {"seen": "yes"})
    [asked] = webhook.asked
    assert (asked["namespace"], asked["object"]["metadata"]["namespace"], asked["operation"]) == (
        "in",
        "in",
        "CREATE",
    )


def test_a_pod_of_a_namespace_that_has_not_opted_in_is_not_shown_to_the_webhook(
    post: Post, webhook: Webhook
) -> None:
    assert post("default")[0] == 201
    assert not webhook.asked


def test_the_webhooks_refusal_reaches_who_created_the_pod(post: Post, webhook: Webhook) -> None:
    webhook.answer = {
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no such luck"},
    }
    code, status = post("in")
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"] == "admission webhook denied the request: no such luck"


def test_no_pod_is_created_while_the_webhook_cannot_be_asked(
    post: Post, api: ApiDouble, webhook: Webhook
) -> None:
    api.admit = SimulatedAdmission(api.api, "https://127.0.0.1:1/", webhook.ca, lambda _: [])
    code, status = post("in")
    assert (code, status["reason"]) == (500, "InternalError")
    assert "failed calling webhook https://127.0.0.1:1/" in status["message"]


def test_what_no_double_does_is_answered_501_by_name(post: Post) -> None:
    code, status = post("default", odd=["spec.affinity", "spec.hostPID"])
    assert code == 501
    assert (
        status["message"]
        == "the simulated cluster does not implement spec.affinity, spec.hostPID of a pod"
    )
