"""The real server as a process: over TLS, with bad input, changing files, and signals. What all
webhooks do alike, preflight-kube proves of the same server.
"""

from __future__ import annotations

import base64
import copy
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from pods import GPU_POD, review
from served import LOOKING_OFTEN, PATIENCE, Webhook, rewrite, webhook

CONFIG = "checks: [{name: dcgm-diag, image: d}]"
INHERITS = "checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """One for all tests that leave it as it is."""
    with webhook(tmp_path_factory.mktemp("shared"), CONFIG, authority=trustme.CA()) as shared:
        yield shared


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Webhook]:
    """One of the test's own, to change, to stop, or to read the log of."""
    options, authority = ("--linger", "0"), trustme.CA()
    with webhook(tmp_path, CONFIG, *options, authority=authority, program=LOOKING_OFTEN) as made:
        yield made


def configure(server: Webhook, config: str) -> None:
    generation = server.metric("preflight_webhook_config_generation")
    rewrite(server.told.parent / "config.yaml", config)
    server.wait_for("preflight_webhook_config_generation", generation + 1)


def pod_of(**main: Any) -> dict[str, Any]:
    pod = copy.deepcopy(GPU_POD)
    pod["spec"]["containers"][0] |= main
    return pod


def test_a_gpu_pod_is_answered_with_a_patch_and_a_denied_one_is_told_why(server: Webhook) -> None:
    answer = server.post(review()).json()
    response = answer["response"]
    assert (answer["kind"], response["uid"]) == ("AdmissionReview", "u-1")
    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"]))[0]["path"] == "/spec/initContainers"
    denied = server.answered(pod_of(name="preflight-x"))
    assert (denied["allowed"], denied["status"]["code"]) == (False, 403)
    assert "rename the container" in denied["status"]["message"]


DEPLOYMENT = {"group": "apps", "version": "v1", "kind": "Deployment"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (review(kind=DEPLOYMENT), "about a apps/Deployment"),
        (review(None), "request.object is not a pod"),
        (review({"spec": None}), "request.object is not a pod"),
        (review({"spec": {"containers": 5}}), "request.object is not a pod"),
    ],
    ids=["other-kind", "null", "null-spec", "odd-spec"],
)
def test_what_is_no_pod_gets_a_clear_400_and_the_server_lives(
    server: Webhook, body: dict[str, Any], says: str
) -> None:
    answer = server.post(body)
    assert (answer.status_code, says in answer.text) == (400, True), answer.text
    assert answer.text.count("\n") == 1
    assert server.injected()


@pytest.mark.parametrize(
    "of_a_pod_that_is_there",
    [
        {"operation": "UPDATE", "oldObject": GPU_POD},
        {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": GPU_POD},
        {"operation": "DELETE", "object": None, "oldObject": GPU_POD},
    ],
    ids=["update", "ephemeral", "delete"],
)
def test_a_pod_that_is_there_already_stays_as_it_is(
    server: Webhook, of_a_pod_that_is_there: dict[str, Any]
) -> None:
    """The API server refuses whatever would be added: a rule that sends more than creations would
    keep finalizers from being removed."""
    assert server.post(review(**of_a_pod_that_is_there)).json()["response"] == {
        "uid": "u-1",
        "allowed": True,
    }


HEAD = b"POST /mutate-pod HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"


def test_a_client_that_hangs_up_or_does_not_go_on_does_no_harm(tmp_path: Path) -> None:
    """When it is cut off, preflight-kube says of the same port."""
    stalled = 'preflight_webhook_connections_closed_total{port="admission",reason="stalled"}'
    with webhook(tmp_path, CONFIG, "--patience", "3", authority=trustme.CA()) as server:

        def connect() -> socket.socket:
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            return server.trust.wrap_socket(plain, server_hostname="localhost")

        with connect() as hangs_up:
            hangs_up.sendall(HEAD)
        with connect() as waits:
            waits.sendall(HEAD)
            assert server.injected()
            assert waits.recv(1000) == b""
        assert server.metric(stalled) == 1
        assert server.injected()


def test_health_and_metrics_are_on_the_plain_port_alone(server: Webhook) -> None:
    read = 'preflight_webhook_bytes_total{direction="read"}'
    before = server.metric(read)
    assert server.injected()
    assert server.metric(read) == before + len(json.dumps(review()))
    assert server.metric("preflight_webhook_in_flight") == 0
    assert [server.probed(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    metrics = server.probed("/metrics").text
    assert 'preflight_injection_total{result="injected"}' in metrics
    assert "preflight_webhook_latency_seconds_bucket" in metrics
    elsewhere = server.url.replace("mutate-pod", "metrics")
    assert httpx.get(elsewhere, verify=server.trust).status_code == 404
    for name in ("admission-connections", "certificate", "configuration"):
        server.wait_for(f'preflight_webhook_watching{{watcher="{name}"}}', 1)
    assert server.metric("preflight_webhook_certificate_valid") == 1


def test_a_new_configuration_holds_without_a_restart_and_a_broken_one_is_refused(
    own: Webhook,
) -> None:
    config = own.told.parent / "config.yaml"
    assert own.metric("preflight_webhook_config_generation") == 1
    assert own.injected() == ["preflight-dcgm-diag"]
    configure(own, "checks: [{name: mine, image: m}]")
    assert own.injected() == ["preflight-mine"]
    rewrite(config, "checks: [{name: mine}]\ndcgm: {diagLevel: 9}")
    own.wait_for("preflight_webhook_config_valid", 0)
    assert own.injected() == ["preflight-mine"]
    assert own.metric("preflight_webhook_config_generation") == 2
    configure(own, "checks: []")
    assert own.metric("preflight_webhook_config_valid") == 1
    [line] = [one for one in own.lines() if one["level"] == "error"]
    assert "new configuration refused, the old one stays" in line["msg"]
    assert len(line["problems"]) == 2


def test_environments_that_nobody_reads_are_counted(own: Webhook) -> None:
    configure(own, INHERITS)
    secrets = [{"secretRef": {"name": name}} for name in ("a", "b")]
    assert own.answered(pod_of(envFrom=secrets))["allowed"]
    assert own.metric('preflight_unseen_environment_total{kind="Secret"}') == 1  # a pod


@pytest.mark.parametrize(
    ("number", "linger"), [(signal.SIGTERM, "0.2"), (signal.SIGINT, "3600")], ids=["15", "2"]
)
def test_it_stops_cleanly_when_told(tmp_path: Path, number: signal.Signals, linger: str) -> None:
    with webhook(tmp_path, CONFIG, "--linger", linger, authority=trustme.CA()) as server:
        assert server.injected()
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 0
        assert server.lines()[-1]["msg"] == "stopped"


def stopped(server: Webhook) -> list[dict[str, Any]]:
    """What it has logged of reviews until its end."""
    server.process.terminate()
    server.process.wait(PATIENCE)
    return [line for line in server.lines() if "uid" in line]


def test_log_lines_are_json_with_the_admission_s_uid_and_the_pods_names(own: Webhook) -> None:
    job = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    named: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"name": "web"}, {"pod": "web"}),
        ({"generateName": "train-worker-0-"}, {"pod": "train-worker-0-"}),
        ({"generateName": "x-", "ownerReferences": [job]}, {"pod": "x-", "owner": "Job/train"}),
    ]
    for metadata, _ in named:
        assert own.answered({**GPU_POD, "metadata": metadata})["allowed"]
    said = stopped(own)
    assert [{key: line[key] for key in ("pod", "owner") if key in line} for line in said] == [
        names for _, names in named
    ]
    about = {"uid": "u-1", "namespace": "ml", "result": "injected", "level": "info"}
    about["component"] = "preflight-webhook"
    for line in said:
        assert about.items() <= line.items()
        assert "time" in line


def test_a_pod_of_an_unknown_resource_is_counted_and_logged_with_what_to_set(
    own: Webhook,
) -> None:
    answer = own.answered(pod_of(name="main", resources={"limits": {"nvidia.com/pgpu": "1"}}))
    assert (answer["allowed"], answer.get("patch")) == (True, None)
    own.wait_for('preflight_injection_total{result="no-checks-unknown-resource"}', 1)
    [line] = stopped(own)
    assert (line["result"], line["pod"], line["level"]) == ("no-checks", "p", "info")
    assert line["msg"].startswith("nvidia.com/pgpu may be a GPU")
    assert "gpuDetection.otherResourceNames" in line["msg"]


def test_no_value_of_an_environment_is_ever_logged(own: Webhook) -> None:
    configure(own, INHERITS + "ncclEnvPatterns: ['*']")
    for value in ("s3cr3t", "$(OTHER)s3cr3t", ["s3cr3t"]):
        for name in ("NCCL_TOPO_FILE", "LD_PRELOAD", "TOKEN"):
            own.post(review(pod_of(env=[{"name": name, "value": value}])))
    own.post(review({"spec": {"containers": [{"name": ["s3cr3t"], "env": "s3cr3t"}]}}))
    stopped(own)
    assert len(own.lines()) > 10
    assert "s3cr3t" not in own.told.read_text()


def test_a_missing_certificate_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    folders = ["--config", str(tmp_path / "config.yaml"), "--cert-dir", str(tmp_path)]
    command = [sys.executable, "-m", "preflight_webhook", "serve", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "tls.crt" in done.stderr
