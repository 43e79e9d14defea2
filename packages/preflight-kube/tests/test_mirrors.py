"""Which mirror is behind the cluster, for how long, and what could not be read: for readiness,
metrics and the log.
"""

from __future__ import annotations

import logging

import pytest
from preflight_kube.client.decoding import Identity, Unreadable
from preflight_kube.client.watch_lag import Mirrors, collection


def test_a_mirror_is_behind_from_its_first_failure_until_it_follows_again() -> None:
    now = [0.0]
    mirrors = Mirrors(lambda: now[0])
    mirrors.follows("a", "/api/v1/pods")
    mirrors.follows("b", "/api/v1/pods")
    assert mirrors.behind() == {"/api/v1/pods": 0.0}
    now[0] = 10.0
    mirrors.falls_behind("a", "/api/v1/pods", "first")
    now[0] = 40.0
    mirrors.falls_behind("a", "/api/v1/pods", "refused")
    mirrors.follows("b", "/api/v1/pods")
    assert mirrors.behind() == {"/api/v1/pods": 30.0}
    assert mirrors.trouble(31.0) == ""
    assert mirrors.trouble(30.0) == "/api/v1/pods has been behind the cluster for 30 s (refused)"
    mirrors.follows("a", "/api/v1/pods")
    assert mirrors.trouble(0.0) == ""
    mirrors.ends("a")
    mirrors.ends("b")
    assert mirrors.behind() == {}


def test_what_cannot_be_read_is_counted_each_time_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    mirrors = Mirrors()
    for uid in ("u1", "u1", "u2"):
        one = Unreadable(Identity("evil", "n", uid), "it is nested too deeply")
        mirrors.cannot_read("/api/v1/namespaces/n/pods", one)
    assert mirrors.unreadable == {"/api/v1/pods": 3}
    assert [record.__dict__["about"]["uid"] for record in caplog.records] == ["u1", "u2"]


def test_a_path_is_one_label_for_all_namespaces() -> None:
    assert collection("/api/v1/namespaces/a/pods") == "/api/v1/pods"
    assert collection("/api/v1/namespaces") == "/api/v1/namespaces"
