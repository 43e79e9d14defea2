"""Every row of `e2e/attacks`: one request of one attacker, against a real API server with all
charts installed, and their webhooks.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from preflight_e2e.all_charts import PROCESSES, attacked, missing, started
from preflight_e2e.attack_requests import ATTACKS, Attack, Attacked, merged, read, rows
from preflight_e2e.bench.load import resident_mb
from preflight_e2e.filled import FilledCluster, largest_of_each
from preflight_testing.apiserver import ASSETS, assets
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(400)
ROWS = rows()


def needed() -> Path:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    if names := missing():
        pytest.skip(f"{', '.join(names)}: not installed beside this interpreter; nox -s attacks")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("attacked"), needed()) as found:
        yield found


@pytest.mark.parametrize("attack", ROWS, ids=[row.row for row in ROWS])
def test_an_attack_is_refused_or_harmless_as_its_row_says(
    attack: Attack, cluster: Attacked
) -> None:
    wrong = cluster.judged(attack, cluster.does(attack))
    if attack.open:
        assert wrong, "it is closed now: take `open` out of the row, and the page's words"
    else:
        assert not wrong, f"{attack.who}: {attack.does}: {wrong}"


def test_a_mark_that_anybody_on_the_network_was_given_lets_nobody_wrap_what_he_may_not_create(
    cluster: Attacked,
) -> None:
    review = copy.deepcopy(cluster.objects["review"])
    review["request"]["userInfo"] = {"username": "ceo", "groups": ["system:masters"]}
    path = "/mutate-workload-codeflare-dev-v1beta2-appwrapper"
    patch = cluster.call("preflight-appwrapper-webhook", path, review).body["patch"]
    [key] = {key for op in patch if "annotations" in op["path"] for key in op["value"]}
    [mark] = [op["value"][key] for op in patch if "annotations" in op["path"]]
    wrapper = review["request"]["object"]
    wrapper["metadata"]["annotations"] = {key: mark}
    where = f"{cluster.path('rival/appwrappers')}?dryRun=All"
    answer = cluster.ask("POST", where, wrapper, user="only appwrappers")
    assert "only appwrappers may not create pods in rival" in answer.words, answer


def test_a_webhook_with_a_client_authority_serves_api_servers_that_show_a_certificate_alone(
    tmp_path: Path,
) -> None:
    # That pods are injected, and a wrapper judged, is waited for.
    with attacked(tmp_path, needed(), certified=True) as certified:
        assert len(certified.webhooks) == 4
        for webhook in certified.webhooks:
            answer = certified.call(webhook, "/", {})
            assert (answer.status, answer.body) == (0, {}), webhook


LONG = "x" * 240
REVIEWED: dict[str, tuple[str, str, str, Object]] = {
    "preflight-injector": (
        *("/mutate-pod", "pods", "gpu-pod"),
        {"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": f"{LONG}-#"}]}},
    ),
    "preflight-gpu-scheduler-webhook": (
        *("/mutate-pods", "pods", "claim-pod"),
        {"metadata": {"annotations": {"gpu.scheduling/claim": f"{LONG}-#"}}},
    ),
    "preflight-appwrapper-webhook": (
        *("/mutate-workload-codeflare-dev-v1beta2-appwrapper", "appwrappers", "appwrapper"),
        {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q-#"}}},
    ),
    "preflight-mnnvl-webhook": (
        *("/mutate-podclique", "podcliques", "podclique"),
        {"metadata": {"labels": {"app.kubernetes.io/part-of": "set-#"}}},
    ),
}
"""By webhook: its path, the kind, an object of `world.toml` and what makes each of them another:
`#` is a number.
"""


@pytest.mark.parametrize("webhook", REVIEWED)
def test_thousands_of_dry_runs_leave_a_webhook_half_of_its_memory_and_others_are_served(
    cluster: Attacked, webhook: str, dry_runs: int
) -> None:
    path, resource, name, change = REVIEWED[webhook]
    pid, limit = cluster.memory[webhook]
    about, chance = cluster.about(f"rival/{resource}"), random.Random(31)
    group, _, version = about["apiVersion"].rpartition("/")
    unsure = ssl.create_default_context()
    unsure.check_hostname, unsure.verify_mode = False, ssl.CERT_NONE
    sent = http.client.HTTPSConnection("127.0.0.1", cluster.webhooks[webhook], context=unsure)
    for number in range(dry_runs):
        noise = {"annotations": {"example.com/noise": chance.randbytes(10_000).hex()}}
        different = json.loads(json.dumps(change).replace("#", str(number)))
        made = merged(merged(cluster.objects[name], {"metadata": noise}), different)
        request = {
            **{"uid": f"u-{number}", "operation": "CREATE", "namespace": "rival", "dryRun": True},
            "kind": {"group": group, "version": version, "kind": about["kind"]},
            "resource": {"group": group, "version": version, "resource": resource},
            "userInfo": {"username": f"somebody-{LONG}-{number}"},
            "object": merged(about | made, {"metadata": {"name": f"dear-{number}"}}),
        }
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": request,
        }
        sent.request("POST", path, json.dumps(review), {"Content-Type": "application/json"})
        answer = sent.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        if number % 100 == 0:
            ordinary = f"{cluster.path('team/pods')}?dryRun=All"
            assert cluster.ask("POST", ordinary, cluster.objects["gpu-pod"]).status == 201
    sent.close()
    assert resident_mb(pid) < limit / 2


FULL, SAMPLE = 200, 20
"""Objects of each kind."""
FRESH = 64
"""MiB of a process that has read nothing, and of the answers that it reads."""
MIRRORLESS = {"preflight-appwrapper-webhook"}
"""It asks about the one object before it."""
FILLED = read(ATTACKS / "memory.toml")
SHAPES = [*(each["shape"] for each in FILLED["everywhere"]), "own 0", "own 1", "own 2"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In full, each process with each shape; else those of which most would be kept."""
    full = metafunc.config.getoption("full")
    if "dry_runs" in metafunc.fixturenames:
        metafunc.parametrize("dry_runs", [5_000 if full else 400])
    if "shape" in metafunc.fixturenames:
        metafunc.parametrize("shape", SHAPES if full else ["own 0"])
        metafunc.parametrize("count", [FULL if full else SAMPLE])
    if "flooded" in metafunc.fixturenames:
        metafunc.parametrize("flooded", [60.0 if full else 3.0])


@pytest.mark.parametrize("process", sorted(PROCESSES.keys() - MIRRORLESS))
def test_the_largest_objects_of_every_kind_leave_a_process_half_of_its_memory(
    cluster: Attacked, process: str, shape: str, count: int, tmp_path: Path
) -> None:
    for lease in cluster.ask("GET", cluster.path("preflight/leases")).body["items"]:
        cluster.ask("DELETE", cluster.path(f"preflight/leases/{lease['metadata']['name']}"))
    with ExitStack() as stack:
        filled = FilledCluster(tmp_path, cluster.server, count)
        filled.objects = dict(largest_of_each(cluster, FILLED, shape))
        stack.enter_context(filled)
        started_, limit = started(cluster, stack, tmp_path / "p", process, filled)
        settled(started_.pid, filled)
        assert started_.poll() is None, (tmp_path / "p" / "log").read_text()[-2000:]
        share = (limit / 2 - FRESH) * count / FULL
        assert resident_mb(started_.pid) < FRESH + share + (0 if count == FULL else FRESH)
        assert resident_mb(started_.pid, "VmHWM") < limit


def settled(pid: int, filled: FilledCluster) -> None:
    """Until a process has read what there is and its memory does not grow any more, or it has
    gone.
    """
    most, quiet = 0.0, 0
    while quiet < 5:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return
        now, reads = resident_mb(pid), bool(filled.answering) or not filled.watched
        quiet = 0 if reads or now > most + 1 else quiet + 1
        most = max(most, now)
        time.sleep(1)


JUNK_A_SECOND = 100 * 1024 * 1024


@pytest.mark.parametrize("webhook", REVIEWED)
def test_junk_on_a_webhooks_port_keeps_nobody_waiting_and_leaves_half_of_its_memory(
    cluster: Attacked, webhook: str, flooded: float
) -> None:
    path, resource, name, _ = REVIEWED[webhook]
    pid, limit = cluster.memory[webhook]
    ends = threading.Event()
    senders = [
        threading.Thread(target=junk, args=(cluster.webhooks[webhook], path, secure, ends))
        for secure in (True, True, False, False)
    ]
    for sender in senders:
        sender.start()
    try:
        where = f"team/{resource}"
        body = cluster.about(where) | merged(
            cluster.objects[name], {"metadata": {"name": "ordinary"}}
        )
        end = time.monotonic() + flooded
        while time.monotonic() < end:
            answer = cluster.ask("POST", f"{cluster.path(where)}?dryRun=All", body)
            assert answer.status == 201, answer
            assert resident_mb(pid) < limit / 2
    finally:
        ends.set()
        for sender in senders:
            sender.join()


def junk(port: int, path: str, secure: bool, ends: threading.Event) -> None:
    """Send a quarter of the junk, in a review of 200 MB or as what is no TLS, again and again."""
    chance, piece = random.Random(port), 256 * 1024
    noise, pause = chance.randbytes(piece), 4 * piece / JUNK_A_SECOND
    unsure = ssl.create_default_context()
    unsure.check_hostname, unsure.verify_mode = False, ssl.CERT_NONE
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 200000000\r\n\r\n"
    while not ends.is_set():
        with suppress(OSError), ExitStack() as stack:
            sent = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            if secure:
                sent = stack.enter_context(unsure.wrap_socket(sent))
            sent.sendall(head.encode() if secure else noise)
            due = time.monotonic()
            while not ends.is_set():
                sent.sendall(noise)
                due += pause
                ends.wait(max(0.0, due - time.monotonic()))


def test_every_attacker_is_among_the_rows_and_every_account_of_ours(cluster: Attacked) -> None:
    tried = {row.who.partition(" on ")[0] for row in ROWS}
    accounts = cluster.ask("GET", cluster.path("preflight/serviceaccounts")).body["items"]
    assert {f"token {each['metadata']['name']}" for each in accounts} <= tried
    assert {"edit", "all", "node n1", "nobody", "pod team"} <= tried
    assert len(ROWS) >= 150


def test_rows_have_names_of_their_own_and_one_expectation() -> None:
    assert [name for name, count in Counter(row.row for row in ROWS).items() if count > 1] == []
    assert [row.row for row in ROWS if bool(row.refused) == bool(row.shows)] == []
