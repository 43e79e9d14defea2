"""The real server over TLS, while somebody does his worst: its memory stays small, and others are
admitted at once.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import httpx
import pytest
import trustme
from pods import GPU_POD, review
from preflight_testing.apidouble import write_kubeconfig
from served import LOOKING_OFTEN, Webhook, rewrite, wait_until, webhook, write_certificate

pytestmark = pytest.mark.timeout(600)
MOST = 128 << 20
"""Bytes that the server may take at any moment; the chart's limit is twice that."""
SOON = 1.0
"""Seconds in which others are answered, where nothing else runs; on a machine that needs more than
a twentieth of them without an attack, twenty times that.
"""
OVERTAKEN = 30
"""An attack's answers that may come between the request of another and its answer. As many as are
under way come first where the server takes turns: ten.
"""
CONFIG = """
checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}]
skipNcclWithoutNetwork: false
podSelection: {enabled: true}
"""


class Served:
    """The server, and a user who goes on creating pods beside whatever a test does."""

    def __init__(self, hook: Webhook) -> None:
        self.hook, self.trust, self.soon = hook, hook.trust, SOON
        self.attacked = 0
        """Answers that an attacker has had."""
        self.timed = False

    def attack(self, body: bytes, connection: HTTPSConnection | None = None) -> int:
        status, _ = self.post(body, connection)
        self.attacked += 1
        return status

    def connection(self) -> HTTPSConnection:
        return HTTPSConnection("localhost", self.hook.port, context=self.trust, timeout=120)

    def post(self, body: bytes, connection: HTTPSConnection | None = None) -> tuple[int, bytes]:
        with ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(closing(self.connection()))
            connection.request("POST", "/mutate-pod", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def healthy(self) -> bool:
        return self.hook.probed("/healthz").is_success

    def shaken(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.hook.port), timeout=20)
        return self.trust.wrap_socket(plain, server_hostname="localhost")

    def small(self) -> bool:
        """Whether it has taken no more memory than it may, at any moment."""
        return self.hook.memory("VmHWM") < MOST

    @contextmanager
    def others(self, *, new: bool = False, pod: object = GPU_POD) -> Iterator[list[int]]:
        """A user's pods and the probes of the kubelet meanwhile: all are answered, and before most
        of what an attacker asks for. It yields how many of an attacker's answers came before each.
        ``new``: each on a new connection.
        """
        took: list[float] = []
        overtaken: list[int] = []
        failed: list[str] = []
        over = threading.Event()

        def user() -> None:
            with ExitStack() as stack:
                kept = None if new else stack.enter_context(closing(self.connection()))
                while not over.wait(0.02):
                    before = self.attacked
                    self._timed(took, failed, lambda: self.post(body, kept)[0] == 200)
                    overtaken.append(self.attacked - before)

        def kubelet() -> None:
            while not over.wait(0.2):
                self._timed(took, failed, self.healthy)

        body = json.dumps(review(pod)).encode()
        threads = [threading.Thread(target=one) for one in (user, kubelet)]
        for thread in threads:
            thread.start()
        try:
            yield overtaken
            wait_until(lambda: len(overtaken) > 5)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert failed == []
        assert median(overtaken) <= OVERTAKEN
        if self.timed:
            assert p99(took) < self.soon

    def calibrate(self) -> None:
        """A user who has the server alone, and so how soon others must be answered
        on this machine.
        """
        took: list[float] = []
        failed: list[str] = []
        body = json.dumps(review(GPU_POD)).encode()
        for _ in range(20):
            self._timed(took, failed, lambda: self.post(body)[0] == 200)
        assert failed == []
        self.soon = max(SOON, 20 * p99(took[5:]))

    @staticmethod
    def _timed(took: list[float], failed: list[str], what: Callable[[], bool]) -> None:
        begun = time.monotonic()
        try:
            assert what()
        except (OSError, HTTPException, httpx.TransportError, AssertionError) as error:
            failed.append(f"{type(error).__name__}: {error}")
        took.append(time.monotonic() - begun)


@contextmanager
def serving(folder: Path, *options: str, config: str = CONFIG, **how: Any) -> Iterator[Served]:
    """``how``: as :func:`served.webhook` has it."""
    options = ("--linger", "0", *options)
    with webhook(folder, config, *options, authority=trustme.CA(), **how) as hook:
        yield Served(hook)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, "--patience", "3") as served:
        yield served


@pytest.fixture
def attacked(server: Served, *, timed: bool) -> Served:
    """The server, for tests beside whose attacks others are answered."""
    server.timed = timed
    if timed:
        server.calibrate()
    return server


def p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)]


def huge(number: int) -> dict[str, Any]:
    """A pod that no validation has seen, with a megabyte in one place or another."""
    long = f"{number}-" + "x" * 1_000_000
    container: dict[str, Any] = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    match number % 8:
        case 0:
            container["resources"]["limits"][long] = "1"
        case 1:
            container["resources"]["limits"]["nvidia.com/gpu"] = "1" + "0" * 1_000_000 + str(number)
        case 2:
            container["env"] = [{"name": "NCCL_X", "value": long}]
        case 3:
            container["env"] = [{"name": f"NCCL_{long}", "value": "1"}]
        case 4:
            container["volumeMounts"] = [{"name": "v", "mountPath": "/dev/shm", "subPath": long}]
        case 5:
            pod["spec"]["initContainers"] = [{"name": long}]
        case 6:
            pod["metadata"]["annotations"] = {"nvsentinel.nvidia.com/preflight-checks": long}
        case 7:
            pod["spec"]["imagePullSecrets"] = [{"name": long}]
    return pod


def test_dry_runs_of_megabytes_leave_memory_small_and_others_served(
    attacked: Served, pytestconfig: pytest.Config
) -> None:
    """A thousand with `--full`."""
    server = attacked
    with server.others() as overtaken, closing(server.connection()) as attacker:
        for number in range(1_000 if pytestconfig.getoption("full") else 250):
            body = json.dumps(review(huge(number), dryRun=True)).encode()
            assert server.attack(body, attacker) == 200
        assert len(overtaken) > 5, "others were answered meanwhile"
    assert server.small()


@pytest.mark.parametrize(
    ("what", "forged"),
    [
        ("env", False),
        ("env", True),
        ("initContainers", False),
        ("references", True),
        ("tolerations", False),
    ],
)
def test_others_are_admitted_at_once_beside_ten_pods_of_tens_of_thousands_of_entries(
    attacked: Served, what: str, forged: bool
) -> None:
    server = attacked
    container: dict[str, Any] = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec: dict[str, Any] = {"containers": [container]}
    match what:
        case "env":
            container["env"] = [{"name": f"NCCL_{i}", "value": f"value-{i}"} for i in range(60_000)]
        case "initContainers":
            spec["initContainers"] = [
                {"name": f"i{i}", "resources": {"limits": {f"a/{i}": "1"}}} for i in range(40_000)
            ]
        case "references":
            container["env"] = [
                {"name": "NCCL_A", "value": "".join(f"$(R{i})" for i in range(250_000))}
            ]
        case "tolerations":
            spec["tolerations"] = [{}] * 700_000
    labels = {"preflight.nvsentinel.nvidia.com/checked": "true"} if forged else {}
    body = json.dumps(review({"metadata": {"name": "p", "labels": labels}, "spec": spec})).encode()
    assert len(body) < 3 << 20
    answers: list[int] = []

    def attack() -> None:
        answers.append(server.attack(body))

    with server.others():
        attackers = [threading.Thread(target=attack) for _ in range(10)]
        for attacker in attackers:
            attacker.start()
        for attacker in attackers:
            attacker.join()
    assert answers == [200] * 10, (
        "denied, not refused: what is refused is admitted under failurePolicy Ignore"
    )
    assert server.small()


class Claims(BaseHTTPRequestHandler):
    """An API server that knows the version of claims, and keeps back those of the greedy one."""

    asked: ClassVar[list[str]] = []
    let_go: ClassVar[threading.Event]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.asked.append(self.path)
        made: dict[str, Any] = {"items": [], "metadata": {}}
        if self.path == "/apis/resource.k8s.io":
            made = {"versions": [{"version": "v1"}]}
        elif "resourceclaims" in self.path:
            if "/namespaces/greedy/" in self.path:
                self.let_go.wait(60)
            made = {
                "spec": {
                    "devices": {"requests": [{"exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
                }
            }
        body = json.dumps(made).encode()
        self.send_response(404 if "preflightconfigs" in self.path else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # the server has gone at the end of the test
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Api(ThreadingHTTPServer):
    request_queue_size = 128
    """With the usual 5, a connection among many is only made when its first packet is sent again, a
    second later.
    """


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    Claims.asked.clear()
    Claims.let_go = threading.Event()
    with Api(("127.0.0.1", 0), Claims) as api:
        api.daemon_threads = True
        threading.Thread(target=api.serve_forever, daemon=True).start()
        yield write_kubeconfig(tmp_path / "kubeconfig", f"http://127.0.0.1:{api.server_address[1]}")
        Claims.let_go.set()
        api.shutdown()


def claiming(*names: str) -> dict[str, Any]:
    claims = [{"name": f"c{i}", "resourceClaimName": name} for i, name in enumerate(names)]
    return {"spec": {"resourceClaims": claims, "containers": [{"name": "c"}]}}


def test_a_pod_of_thirty_thousand_claims_asks_for_none_and_others_get_theirs(
    tmp_path: Path, kubeconfig: Path
) -> None:
    config = CONFIG + "gpuDetection: {deviceClasses: [gpu.nvidia.com], sharedClaims: inject}"
    with serving(tmp_path, config=config, kubeconfig=kubeconfig) as server:
        many = claiming(*[f"a-{i}" for i in range(30_000)])
        answer = server.hook.answered(many, namespace="greedy")
        assert "has 30000 entries, more than the 1024" in answer["status"]["message"]
        assert not [path for path in Claims.asked if "resourceclaims" in path]
        # As many as there may be, from many pods at a time: a share of the requests, not all of
        # them.
        pods = [claiming(*[f"b-{n}-{i}" for i in range(16)]) for n in range(12)]
        attackers = [
            threading.Thread(
                target=server.post, args=(json.dumps(review(pod, namespace="greedy")).encode(),)
            )
            for pod in pods
        ]
        for attacker in attackers:
            attacker.start()
        wait_until(lambda: any("/namespaces/greedy/" in path for path in Claims.asked))
        answer = server.hook.answered(claiming("mine"), namespace="other")
        assert any(attacker.is_alive() for attacker in attackers), "before what came earlier"
        Claims.let_go.set()
        for attacker in attackers:
            attacker.join()
        assert answer["allowed"]
        assert answer["patch"]
        assert server.small()


HEAD = b"POST /mutate-pod HTTP/1.1\r\nhost: x\r\n"


def flood(server: Served, chunk: bytes, size: int) -> bytes:
    """What the server says to somebody who goes on sending ``chunk`` until it is ``size`` bytes."""
    with server.shaken() as connection:
        with suppress(OSError):  # it hangs up
            connection.sendall(HEAD)
            for _ in range(size // len(chunk)):
                connection.sendall(chunk)
        with suppress(OSError):
            return connection.recv(1000)
    return b""


@pytest.mark.parametrize(
    "chunk",
    [b"x" * 65_536, b"a: b\r\n" * 10_000],
    ids=["one header of 100 MB", "millions of headers"],
)
def test_headers_without_end_are_refused_and_cost_no_memory(attacked: Served, chunk: bytes) -> None:
    server = attacked
    with server.others():
        if chunk[0] == b"x"[0]:
            chunk = b"a: " + chunk  # the name is begun once, its value goes on
        said = flood(server, chunk, 100 << 20)
    assert said[:12] in {b"HTTP/1.1 431", b""}
    assert server.small()


@pytest.mark.parametrize("kind", ["handshaken", "without a handshake"])
def test_five_thousand_idle_connections_stop_neither_probes_nor_admission(
    attacked: Served, kind: str
) -> None:
    server = attacked
    number = 1_000 if kind == "handshaken" else 5_000  # a handshake costs both sides
    assert server.healthy()
    with ExitStack() as stack:
        for i in range(number):
            try:
                one = socket.create_connection(("127.0.0.1", server.hook.port), timeout=20)
                stack.callback(one.close)
                if kind == "handshaken":
                    one = server.trust.wrap_socket(one, server_hostname="localhost")
                    stack.callback(one.close)
            except OSError:  # cut off already
                continue
            if i % 500 == 0:
                assert server.healthy()
        with server.others(new=True):
            time.sleep(3)
        assert server.small()
    descriptors = len(list(Path(f"/proc/{server.hook.process.pid}/fd").iterdir()))
    assert descriptors < 700


def test_unfinished_bodies_of_megabytes_cost_no_memory_and_stop_no_admission(
    attacked: Served,
) -> None:
    server = attacked
    head = HEAD + b"content-type: application/json\r\ncontent-length: 3000000\r\n\r\n"
    with ExitStack() as stack, server.others():
        for _ in range(60):  # of which 174 MB would be kept
            with suppress(OSError):
                stack.enter_context(server.shaken()).sendall(head + b"{" * 2_900_000)
    assert server.small()


def test_who_shakes_no_hand_is_cut_off_within_seconds(server: Served, *, timed: bool) -> None:
    with socket.create_connection(("127.0.0.1", server.hook.port), timeout=60) as one:
        begun = time.monotonic()
        assert one.recv(1) == b""
    if timed:
        assert time.monotonic() - begun < 10


def test_a_drain_waits_for_nobody_who_is_idle_or_half_done(server: Served, *, timed: bool) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.hook.port)),
        socket.create_connection(("127.0.0.1", server.hook.port)) as half,
    ):
        half.sendall(HEAD[:10])
        assert server.healthy()
        begun = time.monotonic()
        server.hook.process.terminate()
        assert server.hook.process.wait(30) == 0
    if timed:
        assert time.monotonic() - begun < 8


# --- files that change


def test_a_wrong_configuration_of_any_kind_keeps_neither_the_next_good_one_nor_a_certificate(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, program=LOOKING_OFTEN) as served:
        hook, file = served.hook, tmp_path / "config.yaml"
        wrong = ("{1: a, foo: b}", f"checkTimeout: {'9' * 400}h", "a: &a [*a]")
        for refused, text in enumerate(wrong, 1):
            rewrite(file, text)
            hook.wait_for("preflight_webhook_config_refused_total", refused)
        assert hook.metric("preflight_webhook_config_valid") == 0
        rewrite(file, "checks: [{name: mine, image: m}]")
        hook.wait_for("preflight_webhook_config_generation", 2)
        assert hook.injected() == ["preflight-mine"]
        leaf = write_certificate(trustme.CA(), tmp_path).cert_chain_pems[0].bytes().strip()
        address = ("127.0.0.1", hook.port)
        wait_until(lambda: ssl.get_server_certificate(address).encode().strip() == leaf)
        wait_until(lambda: hook.probed("/readyz").status_code == 200, hook.process)


# --- certificates


@pytest.mark.parametrize(
    ("begins", "ends", "says"),
    [(-2, -1, "has expired at"), (1, 2, "is not valid before")],
    ids=["expired", "early"],
)
def test_a_certificate_out_of_its_time_is_said_once_and_no_replica_with_it_is_ready(
    tmp_path: Path, begins: int, ends: int, says: str
) -> None:
    write_certificate(trustme.CA(), tmp_path, begins, ends)
    with webhook(tmp_path, CONFIG, "--linger", "0", program=LOOKING_OFTEN) as hook:
        wait_until(lambda: "starting" not in hook.probed("/readyz").text, hook.process)
        ready = hook.probed("/readyz")
        assert (ready.status_code, says in ready.text) == (503, True)
        assert hook.metric("preflight_webhook_certificate_valid") == 0
        said = [line["level"] for line in hook.lines() if says in line.get("why", "")]
        assert said == ["error"]
        write_certificate(trustme.CA(), tmp_path)
        wait_until(lambda: hook.probed("/readyz").status_code == 200, hook.process)
        assert hook.metric("preflight_webhook_certificate_valid") == 1


def test_a_certificate_that_clients_refuse_is_counted_and_said_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.trust = ssl.create_default_context()
        for _ in range(3):
            with pytest.raises(ssl.SSLCertVerificationError):
                server.shaken()
        refused = 'preflight_webhook_handshakes_failed_total{reason="certificate-refused"}'
        server.hook.wait_for(refused, 3)
        said = "clients refuse the serving certificate"
        assert len([line for line in server.hook.lines() if said in line["msg"]]) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_of_a_client_outlives_its_authority(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    old, new, file = trustme.CA(), trustme.CA(), tmp_path / "client-ca.pem"
    old.cert_pem.write_to_path(file)
    with serving(tmp_path, "--client-ca", str(file), program=LOOKING_OFTEN) as server:
        contexts = {}
        for authority in (old, new):
            context = contexts[authority] = server.hook.trust
            context.maximum_version = version
            authority.issue_cert("api@server").configure_cert(context)

        def asked(
            authority: trustme.CA, session: ssl.SSLSession | None = None
        ) -> ssl.SSLSession | None:
            with (
                socket.create_connection(("127.0.0.1", server.hook.port), timeout=20) as plain,
                contexts[authority].wrap_socket(
                    plain, server_hostname="localhost", session=session
                ) as connection,
            ):
                return ask(connection)

        def ask(connection: ssl.SSLSocket) -> ssl.SSLSession | None:
            connection.sendall(b"GET /mutate-pod HTTP/1.1\r\nhost: x\r\n\r\n")
            if not (said := connection.recv(1000)).startswith(b"HTTP/1.1 405"):
                raise ConnectionError(said)
            return connection.session

        def works(authority: trustme.CA, session: ssl.SSLSession | None = None) -> bool:
            try:
                asked(authority, session)
            except OSError:
                return False
            return True

        if version is ssl.TLSVersion.TLSv1_2:
            assert not works(old), (
                "older versions take up sessions from a cache that cannot be switched off"
            )
            return
        session = asked(old)
        with pytest.raises(OSError), server.shaken() as nobody:  # noqa: PT011 (as it comes)
            ask(nobody)
        with (
            socket.create_connection(("127.0.0.1", server.hook.port), timeout=20) as plain,
            contexts[old].wrap_socket(plain, server_hostname="localhost") as kept,
        ):
            ask(kept)
            new.cert_pem.write_to_path(file)
            wait_until(lambda: works(new), server.hook.process)
            assert not works(old, session)
            assert not works(old)
            with pytest.raises(OSError):  # noqa: PT011 (reset or ended, as it comes)
                ask(kept)
