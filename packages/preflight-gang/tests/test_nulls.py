"""Pods with null where a field may be left out: the API server keeps what clients of other
languages send.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from preflight_gang.api.types import Pod
from preflight_kube.client.decoding import decode

POD = msgspec.json.Decoder(Pod)

NULLS = [
    {"spec": {"volumes": [{"name": "preflight-node", "projected": {"sources": None}}]}},
    {"spec": {"volumes": None, "initContainers": None, "nodeName": None, "hostNetwork": None}},
    {"spec": None, "status": None},
    {
        "status": {
            "conditions": None,
            "initContainerStatuses": [{"name": "a", "state": None, "restartCount": None}],
        }
    },
    {
        "status": {
            "initContainerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 1, "finishedAt": None}}}
            ]
        }
    },
    {"spec": {"initContainers": [{"name": "a", "volumeMounts": None}, None]}},
]


METADATA = {"name": "a", "namespace": "n", "uid": "uid-a", "resourceVersion": "7"}


@pytest.mark.parametrize("fields", NULLS)
def test_a_null_is_as_if_it_were_not_there(fields: dict[str, Any]) -> None:
    assert decode(POD, json.dumps({"metadata": METADATA, **fields}).encode()).metadata.name == "a"
