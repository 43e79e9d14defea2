"""The same strange reviews sent to the real server over TLS: it answers all of them, at once, and
grows by none.
"""

from __future__ import annotations

import copy
import json
import random
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest
import trustme
from hypothesis import settings
from served import ports, write_certificate
from test_fuzz import REVIEW, mutated
from test_serve import Server, start

COUNT = 100 * settings().max_examples
KEPT = 1_500
"""Pods unlike each other after which everything that is kept is kept: the caches of decisions and
containers hold 1,024.
"""
MOST_GROWTH = 3 << 20
"""Bytes: of 10,000 reviews 300 each, a tenth of what one of them has."""
PATIENCE = 20.0

CONFIG = """
mirrorClaims: []
checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}, {name: nccl-allreduce, image: a, placement: last}]
skipNcclWithoutNetwork: false
ncclEnvPatterns: ['*', LD_PRELOAD]
ncclMountPatterns: ['*']
podSelection: {enabled: true}
gangDiscovery: {optIn: [kubeflow, lws, jobset, grove, kueueWorkload, job]}
checkImagePullSecrets: [ours]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = trustme.CA()
    write_certificate(authority, tmp_path)
    process = start(tmp_path, "--port", "0", "--plain-port", "0", config=CONFIG)
    assert process.stdout is not None
    port, plain_port = ports(process.stdout)
    reader = threading.Thread(
        target=deque, args=(process.stdout, 0), daemon=True
    )  # a full pipe would stop the server
    reader.start()
    yield Server(process, port, plain_port, authority, tmp_path)
    process.kill()
    reader.join()
    process.communicate()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def resident(server: Server) -> int:
    """Bytes of the server's memory."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS:")
    )


def unlike(number: int) -> bytes:
    """A good review of a pod like no other."""
    review = copy.deepcopy(REVIEW)
    review["request"]["object"]["metadata"]["labels"]["app.kubernetes.io/gang-id"] = f"g-{number}"
    review["request"]["object"]["spec"].pop("schedulingGroup")
    review["request"]["object"]["spec"]["containers"][0]["env"] = [
        {"name": "NCCL_ALGO", "value": str(number)}
    ]
    return json.dumps(review).encode()


@pytest.mark.timeout(300)
def test_strange_reviews_are_answered_at_once_and_keep_no_memory(
    server: Server, stack: ExitStack
) -> None:
    connection = stack.enter_context(
        closing(HTTPSConnection("localhost", server.port, context=server.trust, timeout=PATIENCE))
    )
    seen: Counter[int] = Counter()

    def post(body: bytes, path: str = "/mutate-pod") -> None:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in {200, 400}, (body, text)
        if answer.status == 200:
            assert json.loads(text)["response"]["allowed"] in {True, False}
        seen[answer.status] += 1

    for number in range(KEPT):
        post(unlike(number))
    assert seen.pop(200) == KEPT
    chance, before = random.Random(20261121), resident(server)
    for number in range(COUNT):
        post(mutated(chance), "/mutate-pod/confined" if number % 10 == 0 else "/mutate-pod")
    assert seen.keys() == {200, 400}
    assert seen.total() == COUNT
    assert resident(server) - before < MOST_GROWTH
    assert server.process.poll() is None
