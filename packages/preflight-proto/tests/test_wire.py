"""Our encoding against Google's, byte for byte, and over gRPC against a grpcio server."""

from __future__ import annotations

import datetime
import gc
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto import wire
from preflight_proto.check import Action
from preflight_proto.check.events import EventDraft
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.report import batch, send
from preflight_proto.check.testing import FakeConnector

NOW = datetime.datetime(2026, 11, 21, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
texts = st.text(max_size=30)


def our_event(**changes: Any) -> wire.HealthEvent:
    fields: dict[str, Any] = {
        "version": 1,
        "agent": "preflight-dcgm-diag",
        "component_class": "GPU",
        "check_name": "DcgmDiagnosticMemory",
        "is_fatal": True,
        "message": "memory is faulty",
        "recommended_action": wire.RecommendedAction.CONTACT_SUPPORT,
        "error_code": ["DCGM_FR_FAULTY_MEMORY"],
        "entities_impacted": [wire.Entity(entity_type="GPU_UUID", entity_value="GPU-1")],
        "metadata": {"level": "2"},
        "generated_timestamp": NOW,
        "node_name": "node-a",
        "quarantine_overrides": wire.BehaviourOverrides(force=True),
        "drain_overrides": wire.BehaviourOverrides(skip=True),
        "processing_strategy": wire.ProcessingStrategy.STORE_ONLY,
        "id": "x",
        "custom_recommended_action": "y",
    }
    return wire.HealthEvent(**{**fields, **changes})


def test_every_field_reads_back_in_googles_stack(google: tuple[ModuleType, ModuleType]) -> None:
    data = bytes(wire.HealthEvents(version=1, events=[our_event()]))
    theirs = google[0].HealthEvents.FromString(data)
    event = theirs.events[0]
    assert {field.name for field, _ in event.ListFields()} == {
        field.name for field in event.DESCRIPTOR.fields
    } - {"isHealthy"}
    assert (event.checkName, event.recommendedAction, event.processingStrategy) == (
        "DcgmDiagnosticMemory",
        5,
        2,
    )
    assert event.generatedTimestamp.ToDatetime(datetime.UTC) == NOW
    assert theirs.SerializeToString(deterministic=True) == data


@given(
    message=texts,
    codes=st.lists(texts, max_size=3),
    key=texts,
    value=texts,
    fatal=st.booleans(),
    action=st.sampled_from(list(wire.RecommendedAction)),
)
def test_both_stacks_write_the_same_bytes(
    google: tuple[ModuleType, ModuleType],
    message: str,
    codes: list[str],
    key: str,
    value: str,
    fatal: bool,
    action: wire.RecommendedAction,
) -> None:
    ours = bytes(
        our_event(
            message=message,
            error_code=codes,
            metadata={key: value},
            is_fatal=fatal,
            recommended_action=action,
        )
    )
    theirs = google[0].HealthEvent.FromString(ours)
    assert theirs.SerializeToString(deterministic=True) == ours
    assert bytes(wire.HealthEvent().parse(theirs.SerializeToString())) == ours


@pytest.fixture
def server(
    google: tuple[ModuleType, ModuleType], tmp_path: Path
) -> Iterator[tuple[Path, list[tuple[bytes, str | None]]]]:
    """A grpcio server with Google's stubs on a unix socket; what it received, as bytes, with the
    authorization.
    """
    from concurrent import futures  # neither is needed to collect this file

    import grpc
    from google.protobuf import empty_pb2

    received: list[tuple[bytes, str | None]] = []

    class Connector(google[1].PlatformConnectorServicer):  # type: ignore[misc]
        def HealthEventOccurredV1(self, request: Any, context: Any) -> Any:
            token = dict(context.invocation_metadata()).get("authorization")
            received.append((request.SerializeToString(deterministic=True), token))
            return empty_pb2.Empty()

    running = grpc.server(futures.ThreadPoolExecutor(2))
    google[1].add_PlatformConnectorServicer_to_server(Connector(), running)
    path = tmp_path / "connector.sock"
    running.add_insecure_port(f"unix://{path}")
    running.start()
    yield path, received
    running.stop(0).wait()


EVENT = EventDraft(
    "preflight-x",
    "GPU",
    "X",
    fatal=True,
    healthy=False,
    message="m",
    action=Action.CONTACT_SUPPORT,
    error_codes=("C",),
    metadata={"a": "b"},
)


def kit(path: Path, token: Path | None = None) -> KitSettings:
    return KitSettings(
        socket=f"unix://{path}", node_name="node-a", token_path=str(token) if token else None
    )


def test_a_batch_arrives_whole_at_googles_server(
    server: tuple[Path, list[tuple[bytes, str | None]]],
) -> None:
    path, received = server
    assert anyio.run(send, [EVENT, EVENT], kit(path), print) is None
    [(data, token)] = received
    sent = wire.HealthEvents().parse(data)
    assert bytes(sent) == data
    assert token is None
    assert [e.node_name for e in sent.events] == ["node-a", "node-a"]
    assert sent == batch([EVENT, EVENT], kit(path), sent.events[0].generated_timestamp or NOW)


def test_the_token_is_read_afresh_and_sent(
    server: tuple[Path, list[tuple[bytes, str | None]]], tmp_path: Path
) -> None:
    path, received = server
    token = tmp_path / "token"
    for text in ("one", "two\n"):
        token.write_text(text)
        assert anyio.run(send, [EVENT], kit(path, token), print) is None
    assert [t for _, t in received] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_nothing_is_sent_without_a_token_where_one_is_wanted(
    server: tuple[Path, list[tuple[bytes, str | None]]], tmp_path: Path, content: str | None
) -> None:
    path, received = server
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    trouble = anyio.run(send, [EVENT], kit(path, token), print, 0.6)
    assert trouble is not None
    assert "token file" in trouble
    assert not received


def test_a_fake_connector_that_stops_closes_whoever_is_connected(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):  # before or after the connection has been accepted
            with socket.socket(socket.AF_UNIX) as client:
                with FakeConnector(tmp_path / "connector.sock"):
                    client.connect(str(tmp_path / "connector.sock"))
                gc.collect()
    assert [str(warning.message) for warning in caught] == []
