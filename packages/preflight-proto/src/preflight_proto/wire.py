"""HealthEvents on the wire: the generated stubs under the names that the rest of the kit uses.

Importing this module loads gRPC; the contract modules never do.
"""

from __future__ import annotations

from ._generated.datamodels import (
    BehaviourOverrides,
    Entity,
    HealthEvent,
    HealthEvents,
    PlatformConnectorBase,
    PlatformConnectorStub,
    ProcessingStrategy,
    RecommendedAction,
)

__all__ = [
    "BehaviourOverrides",
    "Entity",
    "HealthEvent",
    "HealthEvents",
    "PlatformConnectorBase",
    "PlatformConnectorStub",
    "ProcessingStrategy",
    "RecommendedAction",
]
