"""What the controller keeps of wrappers that somebody has made as dear as they can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from preflight_appwrapper.api.types import Pod
from preflight_appwrapper.core.decode import PartialObject, pod, wrapper
from worst import worst

LIMIT = 512 * 1024 * 1024
"""Bytes: the chart's limit for the controller."""
KEEPS = """
import os, ssl, sys
sys.path.insert(0, sys.argv[1])
from worst import worst
import msgspec
from preflight_appwrapper.core.decode import PartialObject
from preflight_kube.runtime.discovery import RESTMapper
from preflight_appwrapper.controller.cache import WrapperCache
from preflight_appwrapper.api.rules import WrapperRules
from preflight_kube.client.client import Client
from preflight_kube.auth.connection import Connection

def resident():
    fields = open("/proc/self/statm").read().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

client = Client(Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="test", clock=lambda: 0.0)
mirrors = WrapperCache(client, RESTMapper(client), WrapperRules(), lambda _: None)
before = resident()
for number in range(int(sys.argv[3])):
    mirrors.wrappers.wrote(msgspec.json.decode(worst(sys.argv[2], number), type=PartialObject))
wrapper = mirrors.wrapper(("ns", "w0"))
assert len(wrapper.spec.components) == 1 and wrapper.spec.components[0].template["kind"] == "Pod"
print(before, resident(), len(mirrors.wrappers.store))
"""


def kept(shape: str, count: int) -> tuple[int, int]:
    """Bytes that a process has before and after it keeps ``count`` wrappers of a shape."""
    command = [sys.executable, "-c", KEEPS, str(Path(__file__).parent), shape, str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    before, after, held = (int(part) for part in done.stdout.split())
    assert held == count
    return before, after


@pytest.mark.parametrize("shape", ["objects", "lists", "strings", "random", "annotations"])
def test_two_hundred_wrappers_of_990_kilobytes_leave_half_of_the_limit(shape: str) -> None:
    before, after = kept(shape, 40)  # each keeps as much as the one before it
    assert before + 5 * (after - before) < LIMIT / 2, f"{after / 2**20:.0f} MiB"


def test_a_spec_is_read_anew_only_when_its_generation_is_another() -> None:
    def version(number: int, generation: int) -> PartialObject:
        raw = worst("objects", 0)[:-1] + b',"status":{"phase":"Suspended"}}'
        metadata = f'"generation":{generation},"resourceVersion":"{number}",'.encode()
        named = b'"name":"w0",'
        return msgspec.json.decode(raw.replace(named, named + metadata, 1), type=PartialObject)

    first = wrapper(version(1, 4))
    again = wrapper(version(2, 4), first)
    assert again.spec is first.spec
    assert again.status.phase == "Suspended"
    assert wrapper(version(3, 5), again).spec is not first.spec
    assert wrapper(version(4, 0), wrapper(version(3, 0))).spec is not first.spec


def test_what_thousands_of_objects_say_is_kept_once() -> None:
    def read(name: str) -> Pod:
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "job",
            "uid": "u",
            "controller": True,
        }
        container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 8}}}
        raw = {
            "metadata": {"name": name, "namespace": "team", "ownerReferences": [owner]},
            "spec": {"nodeName": "node-1", "containers": [container]},
            "status": {"phase": "Running"},
        }
        text = msgspec.json.encode(raw)
        return pod(msgspec.json.decode(text, type=PartialObject), ["nvidia.com/gpu"])

    one, other = read("one"), read("other")
    assert one.spec is other.spec
    assert one.spec.asks("nvidia.com/gpu")
    assert one.owner is other.owner
    assert one.status.phase is other.status.phase
    assert one.metadata.namespace is other.metadata.namespace
