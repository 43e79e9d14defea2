"""The HTTPS port and the reviews it answers: in this process, and as a process that real API
servers ask.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import itertools
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trustme
from kube_world import going
from preflight_kube.admission import request_body as body
from preflight_kube.admission import reviews, server
from preflight_kube.admission.connections import Connections
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews, Unavailable
from preflight_kube.admission.server import HttpServer
from preflight_kube.admission.tls import Certificate
from preflight_kube.api.jsonpatch import add
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.files import polling as looks
from preflight_kube.runtime.ports import PortTaken
from preflight_testing import waiting
from preflight_testing.apiserver import ApiServer
from prometheus_client import CollectorRegistry
from test_manager import managed
from test_review import UID, review

pytestmark = pytest.mark.anyio
until = partial(waiting.until, seconds=90)


def write_certificate(authority: trustme.CA, folder: Path, **how: Any) -> None:
    leaf = authority.issue_cert("127.0.0.1", "localhost", **how)
    leaf.private_key_pem.write_to_path(folder / "tls.key")
    leaf.cert_chain_pems[0].write_to_path(folder / "tls.crt")


MEMORY_OF_READS = """
import asyncio, ctypes
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Reviews
from preflight_kube.admission.server import HttpServer
from prometheus_client import CollectorRegistry

class Used(ctypes.Structure):  # struct mallinfo2 of malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks rest".split()] + [
        ("more", ctypes.c_size_t * 5)]

mapped = ctypes.CDLL(None).mallinfo2
mapped.restype = Used

async def served():
    metrics = AdmissionMetrics("t", CollectorRegistry())
    server = HttpServer("t", Reviews({}, metrics), metrics, None, host="127.0.0.1", port=0)
    running = asyncio.create_task(server.run())
    while server.unready():
        await asyncio.sleep(0.01)
    before = mapped().hblks
    read = bytes(256 * 1024)
    print(mapped().hblks - before)
    running.cancel()

asyncio.run(served())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc 2.33 or newer")
def test_what_is_read_of_tls_is_not_memory_mapped_anew_each_time() -> None:
    process = subprocess.run(
        [sys.executable, "-c", MEMORY_OF_READS], capture_output=True, text=True, check=False
    )
    assert process.stdout.split() == ["0"], process.stderr


class Hook:
    """A server with one application at /hook, which does what the test says."""

    def __init__(self, folder: Path, longest: float = 10.0, client_ca: Path | None = None) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        write_certificate(self.authority, folder)
        self.registry = CollectorRegistry()
        self.metrics = AdmissionMetrics("t", self.registry)
        self.answer: Callable[[AdmissionRequest], Awaitable[Response]] = self._allow
        self.at_once: Callable[[AdmissionRequest], Response | None] = lambda _: None
        self.reviews = Reviews(
            {"/hook": self._answer, "/soon": self._answer},
            self.metrics,
            longest=longest,
            at_once={"/soon": self._at_once},
        )
        self.certificate = Certificate(folder, "the test", client_ca)
        self.server = HttpServer(
            "hook",
            self.reviews,
            self.metrics,
            self.certificate,
            host="127.0.0.1",
            port=0,
            patience=3600,  # tests look at connections themselves
        )

    async def _answer(self, request: AdmissionRequest) -> Response:
        return await self.answer(request)

    def _at_once(self, request: AdmissionRequest) -> Response | None:
        return self.at_once(request)

    async def _allow(self, request: AdmissionRequest) -> Response:
        return Response()

    @property
    def connections(self) -> Connections:
        assert self.server._server is not None
        return self.server._server.connections

    @property
    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context

    def client(self, shows: trustme.LeafCert | None = None) -> httpx.AsyncClient:
        context = self.trust
        if shows is not None:
            shows.configure_cert(context)
        base = f"https://127.0.0.1:{self.server.port}"
        return httpx.AsyncClient(base_url=base, verify=context, trust_env=False, timeout=60)

    async def post(
        self, content: bytes | None = None, path: str = "/hook", **how: Any
    ) -> httpx.Response:
        body = json.dumps(review()).encode() if content is None else content
        async with self.client() as http:
            return await http.post(
                path, content=body, headers={"content-type": "application/json"}, **how
            )

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def hook(tmp_path: Path) -> AsyncIterator[Hook]:
    async with running(Hook(tmp_path)) as made:
        yield made


@asynccontextmanager
async def running(hook: Hook) -> AsyncIterator[Hook]:
    async with going(hook.server.run):
        await until(lambda: not hook.server.unready(), "it serves")
        yield hook


def response_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["response"]
    assert found["uid"] == UID
    return found


async def test_each_path_is_an_application_of_its_own_and_gets_the_request(hook: Hook) -> None:
    seen: list[AdmissionRequest] = []

    async def answer(request: AdmissionRequest) -> Response:
        seen.append(request)
        return Response(patch=[add("/metadata/labels/a", "b")], warnings=["a warning"])

    hook.answer = answer
    found = response_of(await hook.post())
    assert (found["allowed"], found["warnings"]) == (True, ["a warning"])
    assert json.loads(base64.b64decode(found["patch"])) == [add("/metadata/labels/a", "b")]
    assert [(one.name, one.dry_run) for one in seen] == [("a", True)]
    assert hook.sample("t_admission_reviews_total", path="/hook", result="patched") == 1
    assert hook.sample("t_admission_seconds_count", path="/hook") == 1


async def test_what_is_decided_without_waiting_is_answered_before_the_application_is_asked(
    hook: Hook,
) -> None:
    asked: list[AdmissionRequest] = []

    async def answer(request: AdmissionRequest) -> Response:
        asked.append(request)
        return Response(warnings=["asked"])

    hook.answer = answer
    hook.at_once = lambda _: Response.denied("at once")
    for size in (1, 100_000, 200_000):  # the last is more than is kept before somebody waits for it
        content = json.dumps(review(object={"data": {"x": "y" * size}})).encode()
        found = response_of(await hook.post(content, path="/soon"))
        assert (found["status"]["message"], asked) == ("at once", [])
    assert hook.sample("t_admission_reviews_total", path="/soon", result="denied") == 3
    assert hook.sample("t_admission_seconds_count", path="/soon") == 3
    assert "warnings" not in response_of(await hook.post(path="/soon"))
    assert response_of(await hook.post(path="/hook"))["warnings"] == ["asked"]


@pytest.mark.parametrize("fault", [False, True], ids=["it must wait", "it has a fault"])
@pytest.mark.parametrize(
    "size", [1, 100_000, 200_000], ids=["in one piece", "in several", "not kept until it is whole"]
)
async def test_what_cannot_be_answered_at_once_is_the_applications(
    hook: Hook, size: int, fault: bool
) -> None:
    asked_at_once: list[str] = []

    async def answer(request: AdmissionRequest) -> Response:
        return Response(warnings=["asked"])

    def not_at_once(request: AdmissionRequest) -> Response | None:
        asked_at_once.append(request.uid)
        if fault:
            raise RuntimeError("a fault")
        return None

    hook.answer, hook.at_once = answer, not_at_once
    content = json.dumps(review(object={"data": {"x": "y" * size}})).encode()
    found = response_of(await hook.post(content, path="/soon"))
    assert (found["warnings"], len(asked_at_once)) == (["asked"], 1)
    assert hook.sample("t_admission_reviews_total", path="/soon", result="allowed") == 1


async def test_at_the_end_an_answer_at_once_closes_its_connection(hook: Hook) -> None:
    hook.at_once = lambda _: Response()
    assert "connection" not in (await hook.post(path="/soon")).headers
    hook.reviews.stopping = True
    assert (await hook.post(path="/soon")).headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "content", "type_", "status", "said"),
    [
        ("POST", "/other", b"x", "application/json", 404, "not found; POST an AdmissionReview to /hook or /soon"),
        ("GET", "/hook", b"", "application/json", 405, "GET is not allowed; POST an AdmissionReview"),
        ("POST", "/hook", b"x", "text/plain", 415, "text/plain is not supported; send application/json"),
        ("POST", "/hook", b"{}", "application/json", 400, "the body is not an AdmissionReview"),
        ("POST", "/hook", b"", "application/json; charset=utf-8", 400, "the body is not an AdmissionReview"),
    ],
)  # fmt: skip
async def test_what_is_not_a_review_is_refused_in_one_sentence(
    hook: Hook, method: str, path: str, content: bytes, type_: str, status: int, said: str
) -> None:
    async with hook.client() as http:
        asked = http.build_request(method, path, content=content, headers={"content-type": type_})
        answer = await http.send(asked)
    assert (answer.status_code, said in answer.text) == (status, True)
    assert hook.sample("t_admission_refused_total", status=str(status)) == 1


async def test_a_review_too_large_or_too_deep_to_be_read_is_denied_by_its_uid(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: AdmissionRequest) -> Response:
        raise AssertionError("it was read")

    hook.answer = never
    deep = (
        json.dumps(review(object="HERE"))
        .encode()
        .replace(b'"HERE"', b"[" * 100_000 + b"]" * 100_000)
    )
    large = json.dumps(review(object={"x": "y" * (body.MAX_BODY + 1)})).encode()
    for content, said in ((deep, "nested deeper than"), (large, "is too large")):
        found = response_of(await hook.post(content))
        assert not found["allowed"]
        assert said in found["status"]["message"]
    assert hook.sample("t_admission_reviews_total", path="/hook", result="denied") == 2


def wrong_shape(request: AdmissionRequest) -> None:
    request.new(list)


def an_outage(_: AdmissionRequest) -> None:
    raise Unavailable("the claims cannot be looked up")


def a_fault(_: AdmissionRequest) -> None:
    raise LookupError("secret")


@pytest.mark.parametrize(
    ("fails", "status", "said"),
    [
        (wrong_shape, 200, "request.object is not a list"),
        (an_outage, 500, "the claims cannot be looked up\n"),
        (a_fault, 500, "internal error (LookupError); see the log of the webhook\n"),
    ],
)
async def test_an_application_that_cannot_answer_says_why_and_the_next_review_is_answered(
    hook: Hook,
    caplog: pytest.LogCaptureFixture,
    fails: Callable[[AdmissionRequest], None],
    status: int,
    said: str,
) -> None:
    async def answer(request: AdmissionRequest) -> Response:
        fails(request)
        return Response()

    hook.answer = answer
    found = await hook.post()
    if status == 200:
        denied = response_of(found)["status"]
        assert (denied["code"], said in denied["message"]) == (400, True)
    else:
        assert (found.status_code, found.text) == (status, said)
        assert hook.sample("t_admission_reviews_total", path="/hook", result="failed") == 1
        (refused,) = [one for one in caplog.records if one.getMessage() == "request refused"]
        about = vars(refused)["about"]
        assert (about["uid"], about["why"]) == (UID, said.strip())
    faults = ["admission failed"] if fails is a_fault else []
    assert [record.message for record in caplog.records if record.exc_info] == faults
    hook.answer = hook._allow
    assert response_of(await hook.post())["allowed"]


HALVES = {
    "nothing": b"",
    "half a header": b"POST /soon HTTP/1.1\r\nhost: x\r\ncontent-ty",
    "half a body": b"POST /soon HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{",
    "half a body that is asked for": b"POST /hook HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
async def test_a_client_that_does_not_go_on_between_two_looks_is_cut_off(
    hook: Hook, half: bytes
) -> None:
    async with await anyio.connect_tcp(
        "127.0.0.1", hook.server.port, ssl_context=hook.trust, tls_standard_compatible=False
    ) as stalled:
        await stalled.send(half)
        await until(
            lambda: len(hook.connections._open) == 1 and hook.connections._held == len(half),
            "all of it has come",
        )
        hook.connections.cut_stalled()
        assert response_of(await hook.post())["allowed"]
        assert not hook.sample("t_admission_connections_cut_total", reason="stalled")
        hook.connections.cut_stalled()
        assert hook.sample("t_admission_connections_cut_total", reason="stalled") == 1
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stalled.receive()
    assert response_of(await hook.post())["allowed"]


async def test_a_connection_in_use_is_kept_between_its_requests(hook: Hook) -> None:
    async with hook.client() as http:
        ports = []
        for _ in range(2):
            for path in ("/soon", "/hook"):
                answer = await http.post(path, json=review())
                assert answer.status_code == 200
                ports.append(answer.extensions["network_stream"].get_extra_info("client_addr")[1])
                for _ in range(3):  # more than it takes to cut off what has stalled
                    hook.connections.cut_stalled()
    assert len(set(ports)) == 1


async def test_an_answer_comes_before_the_api_server_gives_up(hook: Hook) -> None:
    ended: list[str] = []

    async def forever(request: AdmissionRequest) -> Response:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")
        return Response()

    hook.answer = forever
    answer = await hook.post(params={"timeout": "0.2s"})
    assert (answer.status_code, answer.text) == (
        500,
        "there was no answer within 0.1 s; see the log of the webhook\n",
    )
    assert ended == ["cancelled"]


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        (b"timeout=10s", 9.5),
        (b"timeout=1m0s", 59.5),
        (b"timeout=2m", 119.5),
        (b"timeout=0.5s", 0.25),
    ]
    + [(query, None) for query in (b"", b"timeout=", b"timeout=x", b"a=b", b"timeout=10")],
)
def test_the_api_servers_patience_is_what_its_query_says_less_the_way(
    query: bytes, seconds: float | None
) -> None:
    assert reviews._patience(query) == seconds


async def test_a_new_certificate_is_served_without_a_restart_and_a_broken_one_is_not(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.authority = trustme.CA()
    with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
        await hook.post()
    (hook.folder / "tls.crt").write_text("half writ")
    assert hook.server._server is not None
    hook.server._refresh(hook.server._server)
    write_certificate(hook.authority, hook.folder)
    hook.server._refresh(hook.server._server)
    assert response_of(await hook.post())["allowed"]
    assert hook.sample("t_admission_certificate_expiry_seconds") == hook.certificate.expires


async def test_an_intermediate_authority_is_enough_to_trust_whoever_asks(tmp_path: Path) -> None:
    intermediate = trustme.CA().create_child_ca()
    intermediate.cert_pem.write_to_path(tmp_path / "ca.crt")
    async with running(Hook(tmp_path, client_ca=tmp_path / "ca.crt")) as hook:
        for authority, served in ((intermediate, True), (trustme.CA(), False)):
            async with hook.client(authority.issue_cert("api.example.com")) as http:
                if served:
                    assert (await http.post("/hook", json=review())).status_code == 200
                    continue
                with pytest.raises((httpx.HTTPError, ssl.SSLError)):
                    await http.post("/hook", json=review())


async def test_the_files_are_looked_at_and_where_they_cannot_be_the_replica_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "POLL_EVERY", 0.01)
    monkeypatch.setattr(looks, "FAILING", 0.05)

    def stale() -> bool:
        raise OSError("stale file handle")

    async with running(Hook(tmp_path)) as hook:
        before = hook.certificate.context
        write_certificate(hook.authority, tmp_path)
        await until(lambda: hook.certificate.context is not before, "it is read again")
        monkeypatch.setattr(hook.certificate, "refresh", stale)
        said = "certificate is not watched any more: OSError: stale file handle"
        await until(lambda: hook.server.unready() == said, "it is not ready")
        monkeypatch.undo()
        await until(lambda: not hook.server.unready(), "it is ready again")


async def test_a_certificate_that_has_expired_makes_the_replica_not_ready(
    hook: Hook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_certificate(hook.authority, hook.folder, not_after=datetime.now(UTC) - timedelta(days=1))
    assert hook.server._server is not None
    for _ in range(2):
        hook.server._refresh(hook.server._server)
    assert "has expired at" in hook.server.unready()
    assert "the test keeps one fresh" in hook.server.unready()
    told = [
        one
        for one in caplog.records
        if one.message == "clients do not take the serving certificate"
    ]
    assert len(told) == 1
    write_certificate(hook.authority, hook.folder)
    hook.server._refresh(hook.server._server)
    assert hook.server.unready() == ""


async def test_at_the_end_a_request_under_way_is_answered_and_closes_its_connection(
    tmp_path: Path,
) -> None:
    gate, begun = anyio.Event(), anyio.Event()

    async def slow(request: AdmissionRequest) -> Response:
        begun.set()
        await gate.wait()
        return Response()

    hook = Hook(tmp_path)
    hook.answer = slow
    serving = asyncio.create_task(hook.server.run())
    await until(lambda: not hook.server.unready(), "it serves")
    async with hook.client() as http:
        content = json.dumps(review()).encode()
        asked = asyncio.create_task(
            http.post("/hook", content=content, headers={"content-type": "application/json"})
        )
        await begun.wait()
        serving.cancel()
        await until(lambda: hook.server.unready() == "hook: stopping", "it is about to end")
        gate.set()
        answer = await asked
    assert response_of(answer)["allowed"]
    assert answer.headers["connection"] == "close"
    with pytest.raises(asyncio.CancelledError):
        await serving
    with pytest.raises(httpx.ConnectError):
        await hook.post()


async def test_a_taken_port_is_one_sentence(hook: Hook, tmp_path: Path) -> None:
    other = HttpServer(
        "other", hook.reviews, hook.metrics, None, host="127.0.0.1", port=hook.server.port
    )
    assert other.unready() == "other: starting"
    with pytest.raises(PortTaken, match=rf"127\.0\.0\.1:{hook.server.port} cannot be listened on"):
        await other.run()


# --- asked by a real API server


@pytest.fixture
def namespace(real_api_server: ApiServer) -> str:
    made = real_api_server.call("POST", "/api/v1/namespaces", {"metadata": {"generateName": "t-"}})
    name: str = made["metadata"]["name"]
    return name


async def test_a_real_api_server_asks_both_applications_and_shows_what_they_say(
    real_api_server: ApiServer, namespace: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    target = connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    group = "/apis/admissionregistration.k8s.io/v1"
    async with (
        Client(target, agent="tests") as client,
        managed(tmp_path / "kubeconfig", tmp_path, namespace, "", str(tmp_path)) as one,
    ):
        await client.create(maps, {"metadata": {"name": "marks"}})
        await one.ready()
        port = one.said("serving")[0]["port"]
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
        rule["operations"] = ["CREATE"]
        for kind, path in (("mutating", "mutate"), ("validating", "validate")):
            hook = {
                "name": f"{kind}.example.com",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/{path}", "caBundle": bundle},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [rule],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "admissionReviewVersions": ["v1"],
            }
            await client.create(
                f"{group}/{kind}webhookconfigurations",
                {"metadata": {"name": f"{kind}-{namespace}"}, "webhooks": [hook]},
            )
        try:
            with anyio.fail_after(600):  # an API server takes a moment to see new configurations
                for number in itertools.count():
                    body = await client.create(maps, {"metadata": {"name": f"a-{number}"}})
                    if (labels := json.loads(body)["metadata"].get("labels")) is not None:
                        break
                while True:
                    try:
                        await client.create(maps, {"metadata": {"name": "refused"}})
                    except KubeError as error:
                        refused = error
                        break
                    await client.delete(f"{maps}/refused")
            assert labels == {"seen": "yes"}
            said = (
                'webhook "validating.example.com" denied the request: no object may be called that'
            )
            assert (refused.status, said in str(refused)) == (422, True)
            metrics = (await one.get("/metrics")).text
            assert 'tests_admission_reviews_total{path="/mutate",result="patched"}' in metrics
            assert 'tests_admission_reviews_total{path="/validate",result="denied"} 1.0' in metrics
        finally:
            for kind in ("mutating", "validating"):
                await client.delete(f"{group}/{kind}webhookconfigurations/{kind}-{namespace}")
