"""A rolling restart of two replicas under load loses no admission."""

from __future__ import annotations

import base64
import itertools
import json
import signal
import ssl
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import trustme
from pods import review
from served import PATIENCE, Webhook, wait_until, webhook


def ready(replica: Webhook) -> bool:
    try:
        return httpx.get(f"{replica.plain}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


@dataclass
class Service:
    """What sends requests only where somebody is ready, as kube-proxy does: a little late."""

    replicas: list[Webhook] = field(default_factory=list)

    def drop_when_unready(self, replica: Webhook) -> None:
        while ready(replica):
            time.sleep(0.05)
        self.replicas = [one for one in self.replicas if one is not replica]


@dataclass
class Client:
    """An API server: stays with a replica while that keeps the connection open, ready or not, and
    sends no request twice.
    """

    service: Service
    trust: ssl.SSLContext
    first: int
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        body = json.dumps(review()).encode()
        with httpx.Client(verify=self.trust, trust_env=False, timeout=20) as http:
            target = None
            for number in itertools.count(self.first):
                if stop.is_set():
                    return
                target = target or self.service.replicas[number % len(self.service.replicas)]
                try:
                    answer = http.post(
                        target.url, content=body, headers={"content-type": "application/json"}
                    )
                    patch = base64.b64decode(answer.json()["response"]["patch"])
                    assert b"preflight-dcgm-diag" in patch
                    if answer.headers.get("connection") == "close":
                        target = None
                except Exception as error:
                    self.failures.append(repr(error))
                    target = None
                self.answered += 1


def test_a_rolling_restart_under_load_loses_no_admission(tmp_path: Path) -> None:
    authority, service, stop = trustme.CA(), Service(), threading.Event()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    config = "checks: [{name: dcgm-diag, image: d}]"
    replica = partial(webhook, tmp_path, config, "--linger", "3600")
    with ExitStack() as stack:
        old = [stack.enter_context(replica(authority=one)) for one in (authority, None)]
        service.replicas = list(old)
        clients = [Client(service, trust, number) for number in range(6)]
        threads = [threading.Thread(target=client.run, args=(stop,)) for client in clients]

        def each_gets_on() -> None:
            before = [client.answered for client in clients]
            wait_until(
                lambda: all(c.answered > b + 10 for c, b in zip(clients, before, strict=True))
            )

        for thread in threads:
            thread.start()
        try:
            each_gets_on()
            for leaving in old:
                successor = stack.enter_context(replica())
                service.replicas = [*service.replicas, successor]
                leaving.process.send_signal(signal.SIGTERM)
                service.drop_when_unready(leaving)
                each_gets_on()  # elsewhere: it has closed their connections with its answers
                leaving.process.send_signal(signal.SIGTERM)  # nobody needs it to linger any more
                assert leaving.process.wait(timeout=PATIENCE) == 0
            each_gets_on()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert [failure for client in clients for failure in client.failures] == []
