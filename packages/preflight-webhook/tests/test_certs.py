"""`certs` against a small API double, and the same facts against a real kube-apiserver where there is one."""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from preflight_kube.admission.certificates import Material, issue, service_names
from preflight_testing.apiserver import free_port
from preflight_webhook import certs, logs
from preflight_webhook.kube import Client, Conflict, Connection, KubeError, connection
from served import api_server

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LIFE = timedelta(days=90)
STORED = issue(service_names("preflight-injector", "preflight"), LIFE, NOW, by="tests")


@pytest.fixture(autouse=True)
def pytests_own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "set_up", lambda level: None)


# --- the cluster

SECRETS = "/api/v1/namespaces/preflight/secrets"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
TARGET = certs.Target("preflight", "preflight-injector-tls", "preflight-injector", "preflight-injector", LIFE)


def configuration(*entries: str) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "preflight-injector"},
        "webhooks": [
            {
                "name": name,
                "clientConfig": {"service": {"name": "preflight-injector", "namespace": "preflight"}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            for name in entries
        ],
    }


ABSENT = {"kind": "Status", "reason": "NotFound", "message": "not found"}


class Double:
    """Objects with resourceVersions over HTTP: just what `certs` uses of the API."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.lock = threading.Lock()
        self.writes: list[str] = []

    def handle(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if method == "GET":
                return (200, self.objects[path]) if path in self.objects else (404, ABSENT)
            assert body is not None
            if method == "POST":
                path = f"{path}/{body['metadata']['name']}"
                if path in self.objects:
                    return 409, {"message": "already exists"}
            elif path not in self.objects:
                return 404, ABSENT
            elif self.objects[path]["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
                return 409, {"message": "the object has been modified"}
            if method == "PATCH":
                patch, body = body, json.loads(json.dumps(self.objects[path]))
                assert body is not None
                for change in patch["webhooks"]:
                    entry = next(w for w in body["webhooks"] if w["name"] == change["name"])
                    entry["clientConfig"].update(change["clientConfig"])
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.objects[path] = body
            self.writes.append(f"{method} {path.rsplit('/', 2)[1]}")
            return (201 if method == "POST" else 200), body


@pytest.fixture
def double() -> Iterator[tuple[Double, Connection]]:
    state = Double()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            status, said = state.handle(self.command, self.path, body)
            data = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = answer

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state, Connection(f"http://127.0.0.1:{server.server_port}", ssl.create_default_context())
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with api_server(tmp_path_factory.mktemp("apiserver"), authorization="RBAC") as server:
        target = Connection(server.server, ssl.create_default_context(cafile=str(server.ca)), server.token)
        with Client(target) as client:
            client.create("/api/v1/namespaces", {"metadata": {"name": "preflight"}})
        yield target


@pytest.fixture(params=["double", "apiserver"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of an empty cluster with the webhook configuration of two entries."""
    made = request.getfixturevalue(request.param)
    target = made if isinstance(made, Connection) else made[1]
    with Client(target) as client:
        client.create(CONFIGURATIONS, configuration("by-label.example.com", "by-list.example.com"))
        yield client
        if request.param == "apiserver":
            delete(client, f"{SECRETS}/{TARGET.secret}", TARGET.configuration_path)


def delete(client: Client, *paths: str) -> None:
    for path in paths:
        if client.get(path) is not None:
            client._send("DELETE", path)


def keep_and_publish(client: Client, **kwargs: Any) -> Material:
    stored = certs.keep(client, TARGET, **kwargs)
    certs.publish(client, TARGET, stored)
    return stored


def bundles(client: Client) -> list[bytes]:
    found = client.get(TARGET.configuration_path)
    assert found is not None
    return [base64.b64decode(entry["clientConfig"].get("caBundle", "")) for entry in found["webhooks"]]


def versions(client: Client) -> tuple[str, str]:
    secret, found = client.get(f"{SECRETS}/{TARGET.secret}"), client.get(TARGET.configuration_path)
    assert secret is not None
    assert found is not None
    return secret["metadata"]["resourceVersion"], found["metadata"]["resourceVersion"]


def test_every_entry_trusts_what_the_secret_holds(cluster: Client) -> None:
    stored = keep_and_publish(cluster)
    assert bundles(cluster) == [stored.authorities] * 2
    secret = cluster.get(f"{SECRETS}/{TARGET.secret}")
    assert secret is not None
    assert secret["type"] == "kubernetes.io/tls"
    assert base64.b64decode(secret["data"]["tls.crt"]) == stored.certificate


def test_a_second_run_changes_nothing(cluster: Client) -> None:
    keep_and_publish(cluster)
    before = versions(cluster)
    keep_and_publish(cluster)
    assert versions(cluster) == before


def test_an_entry_that_an_upgrade_adds_gets_the_bundle_and_the_certificate_stays(cluster: Client) -> None:
    stored = keep_and_publish(cluster)
    found = cluster.get(TARGET.configuration_path)
    assert found is not None
    found["webhooks"] = [{**w, "clientConfig": {**w["clientConfig"]}} for w in found["webhooks"]] + configuration(
        "new.example.com"
    )["webhooks"]
    cluster.replace(TARGET.configuration_path, found)
    assert keep_and_publish(cluster) == stored
    assert bundles(cluster) == [stored.authorities] * 3


def test_renewal_leaves_old_and_new_authority_trusted(cluster: Client) -> None:
    first = keep_and_publish(cluster)
    second = keep_and_publish(cluster, now=datetime.now(UTC) + timedelta(days=61))
    assert second.certificate != first.certificate
    assert first.authorities in second.authorities
    assert bundles(cluster) == [second.authorities] * 2


def test_runs_at_the_same_time_agree_on_one_certificate(cluster: Client) -> None:
    target = cluster.target

    def one(_: int) -> Material:
        with Client(target) as client:
            return keep_and_publish(client)

    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(one, range(4)))
    assert len(made) == 1
    assert bundles(cluster) == [made.pop().authorities] * 2


def test_a_left_over_secret_is_taken_over_from_a_release_that_is_gone(cluster: Client) -> None:
    def owner(uid: str) -> dict[str, str]:
        return {"apiVersion": "v1", "kind": "ServiceAccount", "name": "preflight-injector-certs", "uid": uid}

    first = keep_and_publish(cluster, owner=owner("gone"))
    assert keep_and_publish(cluster, owner=owner("here")) == first
    secret = cluster.get(f"{SECRETS}/{TARGET.secret}")
    assert secret is not None
    assert [o["uid"] for o in secret["metadata"]["ownerReferences"]] == ["here"]


def test_a_secret_of_somebody_else_is_left_alone(cluster: Client) -> None:
    cluster.create(SECRETS, {"metadata": {"name": TARGET.secret}, "data": {"a": "Yg=="}})
    with pytest.raises(KubeError, match=r"Secret preflight/preflight-injector-tls exists but is not labelled"):
        certs.keep(cluster, TARGET)
    found = cluster.get(f"{SECRETS}/{TARGET.secret}")
    assert found is not None
    assert found["data"] == {"a": "Yg=="}


def test_the_new_authority_is_published_before_its_certificate_is_stored(double: tuple[Double, Connection]) -> None:
    state, target = double
    with Client(target) as client:
        client.create(CONFIGURATIONS, configuration("one.example.com"))
        keep_and_publish(client)
        state.writes.clear()
        keep_and_publish(client, now=datetime.now(UTC) + timedelta(days=61))
    assert state.writes == ["PATCH mutatingwebhookconfigurations", "PUT secrets", "PATCH mutatingwebhookconfigurations"]


def test_api_servers_get_time_to_see_a_new_authority_before_its_certificate_is_stored(
    double: tuple[Double, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, target = double
    waits: list[tuple[float, list[str]]] = []
    monkeypatch.setattr("preflight_webhook.certs.time.sleep", lambda seconds: waits.append((seconds, [*state.writes])))
    with Client(target) as client:
        client.create(CONFIGURATIONS, configuration("one.example.com"))
        certs.publish(client, TARGET, certs.keep(client, TARGET, settle_seconds=5))
        assert waits == [], "nothing was served yet"
        state.writes.clear()
        certs.keep(client, TARGET, now=datetime.now(UTC) + timedelta(days=61), settle_seconds=5)
    assert waits == [(5, ["PATCH mutatingwebhookconfigurations"])]


def test_a_run_that_died_after_publishing_leaves_the_served_certificate_trusted(
    double: tuple[Double, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = double

    def dies(*_: object) -> None:
        raise KubeError("the process ended")

    with Client(target) as client:
        client.create(CONFIGURATIONS, configuration("one.example.com"))
        first = keep_and_publish(client)
        with monkeypatch.context() as patched:
            patched.setattr(certs, "_write", dies)
            with pytest.raises(KubeError):
                keep_and_publish(client, now=datetime.now(UTC) + timedelta(days=61))
        assert first.authorities in bundles(client)[0]
        assert keep_and_publish(client) == first
        assert bundles(client) == [first.authorities]


def test_the_secret_is_made_although_the_configuration_comes_later(double: tuple[Double, Connection]) -> None:
    state, target = double
    with Client(target) as client:
        stored = certs.keep(client, TARGET)
        late = threading.Timer(0.2, lambda: state.handle("POST", CONFIGURATIONS, configuration("one.example.com")))
        late.start()
        certs.publish(client, TARGET, stored, wait_seconds=20)
        late.join()
        assert bundles(client) == [stored.authorities]


# --- the command


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    certs.add_arguments(parser)
    return parser.parse_args(argv)


def kubeconfig(path: Path, server: str, user: dict[str, Any]) -> Path:
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def test_the_command_says_in_one_sentence_that_the_configuration_is_missing(
    double: tuple[Double, Connection],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", double[1].server, {"token": "t"})))
    assert certs.run(parsed("--namespace", "preflight")) == 1
    assert capsys.readouterr().err == (
        "preflight-webhook certs: MutatingWebhookConfiguration preflight-injector does not exist; "
        "install the chart, or name the right one by --webhook-configuration.\n"
    )


def test_the_command_succeeds_where_everything_is_there(
    double: tuple[Double, Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    double[0].handle("POST", CONFIGURATIONS, configuration("one.example.com"))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", double[1].server, {"token": "t"})))
    assert certs.run(parsed("--namespace", "preflight")) == 0
    assert f"{SECRETS}/{TARGET.secret}" in double[0].objects


def test_a_cluster_that_does_not_answer_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "kubeconfig", server, {"token": "t"})))
    assert certs.run(parsed("--namespace", "preflight")) == 1
    assert f"{server}: no answer to GET {SECRETS}" in capsys.readouterr().err


@pytest.mark.parametrize("days", ["0", "-1", "9999", "soon", "1.5"])
def test_a_senseless_lifetime_is_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parsed("--namespace", "preflight", f"--lifetime-days={days}")
    assert "is not a number of days from 1 to 3650" in capsys.readouterr().err


# --- the connection


def test_without_kubeconfig_and_pod_there_is_a_sentence() -> None:
    with pytest.raises(KubeError, match=r"KUBECONFIG is not set and this is not a pod"):
        connection({})


def test_a_pod_without_token_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match=r"token or ca.crt cannot be read"):
        connection({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_kubeconfig_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text("a: b")
    with pytest.raises(KubeError, match=r"no current-context is set"):
        connection({"KUBECONFIG": str(tmp_path / "kubeconfig")})


def test_an_ipv6_service_host_is_bracketed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_bytes(STORED.authorities)
    found = connection({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (found.server, found.token) == ("https://[fd00::1]:6443", "abc")


def test_a_write_over_a_newer_version_is_a_conflict(double: tuple[Double, Connection]) -> None:
    with Client(double[1]) as client:
        client.create(CONFIGURATIONS, configuration("one.example.com"))
        stale = {**configuration("one.example.com"), "metadata": {"name": "preflight-injector", "resourceVersion": "0"}}
        with pytest.raises(Conflict):
            client.replace(TARGET.configuration_path, stale)


def test_the_owner_is_read_from_the_pods_own_token_and_only_for_its_namespace() -> None:
    claims = {"kubernetes.io": {"namespace": "preflight", "serviceaccount": {"name": "certs", "uid": "1-2"}}}
    token = "h." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".s"
    inside = Connection("https://here", ssl.create_default_context(), token)
    assert certs._service_account(inside, "preflight") == {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "name": "certs",
        "uid": "1-2",
    }
    assert certs._service_account(inside, "elsewhere") is None
    assert certs._service_account(Connection("https://here", inside.verify, "opaque"), "preflight") is None
