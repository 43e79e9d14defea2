"""The real server as a process: over TLS, with bad input, a changing certificate, and signals."""

from __future__ import annotations

import base64
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from preflight_kube.admission.limits import VALUES
from served import LOOKING_OFTEN, PATIENCE, PROGRAM, ports, rewrite, wait_until, write_certificate

GPU_POD = {
    "metadata": {"name": "p"},
    "spec": {
        "containers": [
            {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ]
    },
}


def review(pod: object = GPU_POD, **request: Any) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": kind,
            "operation": "CREATE",
            "namespace": "ml",
            "object": pod,
            **request,
        },
    }


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    plain_port: int
    authority: trustme.CA
    folder: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}/mutate-pod"

    @property
    def plain(self) -> str:
        return f"http://127.0.0.1:{self.plain_port}"

    @property
    def trust(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


def start(
    folder: Path,
    *options: str,
    config: str = "checks: [{name: dcgm-diag, image: d}]",
    program: Sequence[str] = PROGRAM,
) -> subprocess.Popen[str]:
    (folder / "config.yaml").write_text(config)
    command = [
        "serve",
        "--config",
        str(folder / "config.yaml"),
        "--cert-dir",
        str(folder),
        "--host",
        "127.0.0.1",
        "--linger",
        "0",
        *options,
    ]
    return subprocess.Popen(
        [sys.executable, *program, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(
    folder: Path, authority: trustme.CA, *options: str, program: Sequence[str] = PROGRAM
) -> Iterator[Server]:
    write_certificate(authority, folder)
    process = start(folder, "--port", "0", "--plain-port", "0", *options, program=program)
    assert process.stdout is not None
    port, plain_port = ports(process.stdout)
    yield Server(process, port, plain_port, authority, folder)
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests that leave it as it is."""
    with running(tmp_path_factory.mktemp("shared"), trustme.CA()) as shared:
        yield shared


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    """One of the test's own, to change, to stop, or to read the log of."""
    with running(tmp_path, trustme.CA(), program=LOOKING_OFTEN) as server:
        yield server


def post(server: Server, content: bytes, **headers: str) -> httpx.Response:
    return httpx.post(
        server.url,
        content=content,
        headers={"content-type": "application/json", **headers},
        verify=server.trust,
    )


def good(server: Server) -> bool:
    answer = post(server, json.dumps(review()).encode()).json()["response"]
    return bool(answer["allowed"]) and bool(json.loads(base64.b64decode(answer["patch"])))


def test_a_gpu_pod_is_answered_with_a_patch(server: Server) -> None:
    answer = post(server, json.dumps(review()).encode()).json()
    assert (answer["kind"], answer["response"]["uid"], answer["response"]["patchType"]) == (
        "AdmissionReview",
        "u-1",
        "JSONPatch",
    )
    patch = json.loads(base64.b64decode(answer["response"]["patch"]))
    assert patch[0]["path"] == "/spec/initContainers"


def test_a_denied_pod_is_told_why(server: Server) -> None:
    pod = {"spec": {"containers": [{"name": "preflight-x", "resources": {}}]}}
    response = post(server, json.dumps(review(pod)).encode()).json()["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 403)
    assert "rename the container" in response["status"]["message"]


whole = json.dumps(review()).encode()
DENIED = 'preflight_injection_total{result="denied"}'
STALLED = 'preflight_webhook_connections_closed_total{port="admission",reason="stalled"}'


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not an AdmissionReview"),
        (b"not json", 400, "not an AdmissionReview"),
        (b"\xff\xfe", 400, "not an AdmissionReview"),
        (b"[]", 400, "not an AdmissionReview"),
        (
            json.dumps(
                review(kind={"group": "apps", "version": "v1", "kind": "Deployment"})
            ).encode(),
            400,
            "about a apps/Deployment",
        ),
        (
            json.dumps({**review(), "apiVersion": "admission.k8s.io/v1beta1"}).encode(),
            400,
            "expected admission.k8s.io/v1",
        ),
        (json.dumps(review(pod=None)).encode(), 400, "request.object is not a pod"),
        (json.dumps(review(pod={"spec": None})).encode(), 400, "request.object is not a pod"),
        (
            json.dumps(review(pod={"spec": {"containers": 5}})).encode(),
            400,
            "request.object is not a pod",
        ),
        (b'{"a":"' + b"x" * (4 << 20) + b'"}', 413, "too large"),
    ],
    ids=[
        "empty",
        "text",
        "bytes",
        "list",
        "other-kind",
        "other-version",
        "null",
        "null-spec",
        "odd-spec",
        "large",
    ],
)
def test_bad_bodies_get_a_clear_4xx_and_the_server_lives(
    server: Server, body: bytes, status: int, says: str
) -> None:
    answer = post(server, body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert answer.text.count("\n") == 1
    assert good(server)


def test_a_review_of_which_only_the_uid_can_be_read_is_denied(server: Server) -> None:
    before = metric(server, DENIED)
    response = post(server, whole[:-20]).json()["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", False)
    assert "is not an AdmissionReview" in response["status"]["message"]
    assert metric(server, DENIED) == before + 1
    assert good(server)


def test_a_pod_beyond_a_limit_of_all_webhooks_is_denied_and_counted(server: Server) -> None:
    before = metric(server, DENIED)
    pod = {**GPU_POD, "x": [{}] * (VALUES + 1)}
    response = post(server, json.dumps(review(pod)).encode()).json()["response"]
    assert (response["allowed"], f"more than the {VALUES}" in response["status"]["message"]) == (
        False,
        True,
    )
    assert metric(server, DENIED) == before + 1


def test_wrong_paths_methods_and_types_are_refused(server: Server) -> None:
    assert httpx.get(server.url, verify=server.trust).status_code == 405
    assert (
        httpx.post(
            server.url.replace("mutate-pod", "other"), content=whole, verify=server.trust
        ).status_code
        == 404
    )
    assert post(server, whole, **{"content-type": "text/yaml"}).status_code == 415
    assert good(server)


def test_a_client_that_hangs_up_within_the_body_does_no_harm(server: Server) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port)) as raw,
        server.trust.wrap_socket(raw, server_hostname="localhost") as connection,
    ):
        connection.sendall(
            b"POST /mutate-pod HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        )
    assert good(server)


HALVES = {
    "nothing": b"",
    "half a header": b"POST /mutate-pod HTTP/1.1\r\nhost: x\r\ncontent-ty",
    "half a body": b"POST /mutate-pod HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{",
}


def test_a_client_that_does_not_go_on_is_cut_off(tmp_path: Path) -> None:
    """At which look, preflight-kube says of the same port."""
    with running(tmp_path, trustme.CA(), "--patience", "0.5") as server:
        with ExitStack() as stack:
            stalled = []
            for half in HALVES.values():
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                connection = server.trust.wrap_socket(raw, server_hostname="localhost")
                stalled.append(stack.enter_context(connection))
                with suppress(ConnectionError, ssl.SSLError):  # cut off before that
                    connection.sendall(half)
            for connection in stalled:
                connection.settimeout(PATIENCE)
                with suppress(ConnectionError, ssl.SSLError):
                    assert connection.recv(1000) == b""
        assert metric(server, STALLED) == len(HALVES)
        wait_until(lambda: good_at_once(server), server.process)


def good_at_once(server: Server) -> bool:
    """False where we did not go on at once either."""
    try:
        return good(server)
    except httpx.TransportError:
        return False


def test_a_connection_in_use_is_kept_between_its_requests(server: Server) -> None:
    with httpx.Client(verify=server.trust) as client:
        ports = []
        for _ in range(2):
            answer = client.post(
                server.url, content=whole, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 200
            ports.append(answer.extensions["network_stream"].get_extra_info("client_addr")[1])
    assert ports[0] == ports[1]


def test_health_and_metrics_are_on_the_plain_port_alone(server: Server) -> None:
    assert good(server)
    assert httpx.get(f"{server.plain}/healthz").status_code == 200
    assert httpx.get(f"{server.plain}/readyz").status_code == 200
    metrics = httpx.get(f"{server.plain}/metrics").text
    assert 'preflight_injection_total{result="injected"}' in metrics
    assert "preflight_webhook_latency_seconds_bucket" in metrics
    assert (
        httpx.get(server.url.replace("mutate-pod", "metrics"), verify=server.trust).status_code
        == 404
    )


def test_a_new_certificate_is_served_without_a_restart(own: Server) -> None:
    assert good(own)
    own.authority = trustme.CA()
    write_certificate(own.authority, own.folder)
    wait_until(lambda: good_at_once(own), own.process)


def metric(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.plain}/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name + " ")), -1.0)


def injected(server: Server) -> list[str]:
    answer = post(server, json.dumps(review()).encode()).json()["response"]
    patch = json.loads(base64.b64decode(answer["patch"]))
    return [container["name"] for container in patch[0]["value"]]


def wait_for(server: Server, name: str, value: float) -> None:
    wait_until(lambda: metric(server, name) == value, server.process)


def test_a_new_configuration_holds_without_a_restart_and_a_broken_one_is_refused(
    own: Server,
) -> None:
    config = own.folder / "config.yaml"
    assert (metric(own, "preflight_webhook_config_generation"), injected(own)) == (
        1,
        ["preflight-dcgm-diag"],
    )
    rewrite(config, "checks: [{name: mine, image: m}]")
    wait_for(own, "preflight_webhook_config_generation", 2)
    assert injected(own) == ["preflight-mine"]
    rewrite(config, "checks: [{name: mine}]\ndcgm: {diagLevel: 9}")
    wait_for(own, "preflight_webhook_config_valid", 0)
    assert injected(own) == ["preflight-mine"]
    assert metric(own, "preflight_webhook_config_generation") == 2
    rewrite(config, "checks: []")
    wait_for(own, "preflight_webhook_config_valid", 1)
    own.process.send_signal(signal.SIGTERM)
    stdout, _ = own.process.communicate(timeout=30)
    [line] = [one for one in map(json.loads, stdout.splitlines()) if one["level"] == "error"]
    assert "new configuration refused, the old one stays" in line["msg"]
    assert len(line["problems"]) == 2


def test_all_that_is_looked_at_is_in_the_metrics(server: Server) -> None:
    for name in ("admission-connections", "certificate", "configuration"):
        wait_for(server, f'preflight_webhook_watching{{watcher="{name}"}}', 1)
    assert metric(server, "preflight_webhook_certificate_valid") == 1


def test_bytes_and_requests_in_flight_are_counted(server: Server) -> None:
    name = 'preflight_webhook_bytes_total{direction="read"}'
    before = metric(server, name)
    assert good(server)
    assert metric(server, name) == before + len(whole)
    assert metric(server, "preflight_webhook_in_flight") == 0


def test_environments_that_nobody_reads_are_counted(own: Server) -> None:
    rewrite(
        own.folder / "config.yaml",
        "checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false",
    )
    wait_for(own, "preflight_webhook_config_generation", 2)
    pod = json.loads(json.dumps(GPU_POD))
    pod["spec"]["containers"][0]["envFrom"] = [
        {"secretRef": {"name": "a"}},
        {"secretRef": {"name": "b"}},
    ]
    assert post(own, json.dumps(review(pod)).encode()).json()["response"]["allowed"]
    assert metric(own, 'preflight_unseen_environment_total{kind="Secret"}') == 1  # a pod


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Server]:
    """A server for clients of an authority that stands in client-ca.pem."""
    authority = trustme.CA()
    file = tmp_path / "client-ca.pem"
    authority.cert_pem.write_to_path(file)
    with running(tmp_path, authority, "--client-ca", str(file), program=LOOKING_OFTEN) as server:
        yield server


def as_client(server: Server, authority: trustme.CA) -> httpx.Response:
    trust = server.trust
    authority.issue_cert("api@server").configure_cert(trust)
    return httpx.post(
        server.url, content=whole, headers={"content-type": "application/json"}, verify=trust
    )


def test_only_clients_of_the_authority_are_served_where_one_is_set(private: Server) -> None:
    assert as_client(private, private.authority).status_code == 200
    with pytest.raises(httpx.TransportError):
        post(private, whole)
    with pytest.raises(httpx.TransportError):
        as_client(private, trustme.CA())
    ready = f"{private.plain}/readyz"  # a probe has no certificate
    wait_until(lambda: httpx.get(ready).status_code == 200)


def test_a_new_client_authority_holds_without_a_restart(private: Server) -> None:
    new = trustme.CA()
    new.cert_pem.write_to_path(private.folder / "client-ca.pem")

    def served() -> bool:
        try:
            return as_client(private, new).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(served, private.process)
    with pytest.raises(httpx.TransportError):
        as_client(private, private.authority)


@pytest.mark.parametrize(
    ("number", "linger"), [(signal.SIGTERM, "0.2"), (signal.SIGINT, "3600")], ids=["15", "2"]
)
def test_it_stops_cleanly_when_told(tmp_path: Path, number: signal.Signals, linger: str) -> None:
    with running(tmp_path, trustme.CA(), "--linger", linger) as server:
        assert good(server)
        server.process.send_signal(number)
        stdout, stderr = server.process.communicate(timeout=PATIENCE)
        assert (server.process.returncode, stderr) == (0, "")
        assert [json.loads(line)["msg"] for line in stdout.splitlines()][-1] == "stopped"


def test_log_lines_are_json_with_the_admission_s_uid_and_the_pods_names(own: Server) -> None:
    assert own.process.stdout is not None
    job = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    for metadata, names in (
        ({"name": "web"}, {"pod": "web"}),
        ({"generateName": "train-worker-0-"}, {"pod": "train-worker-0-"}),
        (
            {"generateName": "x-", "ownerReferences": [job]},
            {"pod": "x-", "owner": "Job/train"},
        ),
    ):
        body = json.dumps(review({**GPU_POD, "metadata": metadata})).encode()
        assert post(own, body).status_code == 200
        said = map(json.loads, own.process.stdout)  # of a machine that stands still, others too
        line = next(one for one in said if "uid" in one)
        assert {key: line[key] for key in ("pod", "owner") if key in line} == names
    assert (line["uid"], line["namespace"], line["result"], line["component"], line["level"]) == (
        "u-1",
        "ml",
        "injected",
        "preflight-webhook",
        "info",
    )
    assert "time" in line


def test_a_pod_of_an_unknown_resource_is_counted_and_logged_with_what_to_set(
    own: Server,
) -> None:
    main = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/pgpu": "1"}}}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [main]}}
    answer = post(own, json.dumps(review(pod)).encode()).json()["response"]
    assert (answer["allowed"], answer.get("patch")) == (True, None)
    wait_for(own, 'preflight_injection_total{result="no-checks-unknown-resource"}', 1)
    assert own.process.stdout is not None
    line = json.loads(own.process.stdout.readline())
    assert (line["result"], line["pod"], line["level"]) == ("no-checks", "p", "info")
    assert line["msg"].startswith("nvidia.com/pgpu may be a GPU")
    assert "gpuDetection.otherResourceNames" in line["msg"]


def test_no_value_of_an_environment_is_ever_logged(own: Server) -> None:
    rewrite(
        own.folder / "config.yaml",
        "checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false\nncclEnvPatterns: ['*']",
    )
    wait_for(own, "preflight_webhook_config_generation", 2)
    pod = json.loads(json.dumps(GPU_POD))
    main = pod["spec"]["containers"][0]
    for value in ("s3cr3t", "$(OTHER)s3cr3t", ["s3cr3t"]):
        for name in ("NCCL_TOPO_FILE", "LD_PRELOAD", "TOKEN"):
            main["env"] = [{"name": name, "value": value}]
            post(own, json.dumps(review(pod)).encode())
    post(
        own,
        json.dumps(
            review({"spec": {"containers": [{"name": ["s3cr3t"], "env": "s3cr3t"}]}})
        ).encode(),
    )
    own.process.send_signal(signal.SIGTERM)
    stdout, stderr = own.process.communicate(timeout=30)
    assert stdout.count("\n") > 10
    assert "s3cr3t" not in stdout + stderr


def test_a_taken_port_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    write_certificate(trustme.CA(), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, stderr = (
            process := start(tmp_path, "--port", str(port), "--plain-port", "0")
        ).communicate(timeout=30)
    assert (process.returncode, len(stderr.splitlines())) == (2, 1)
    assert f"127.0.0.1:{port} cannot be listened on" in stderr


def test_a_missing_certificate_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    _, stderr = (process := start(tmp_path)).communicate(timeout=30)
    assert (process.returncode, len(stderr.splitlines())) == (2, 1)
    assert "tls.crt" in stderr
