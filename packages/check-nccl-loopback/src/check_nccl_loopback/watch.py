"""What the driver said, around the load."""

from __future__ import annotations

from collections.abc import Sequence

from preflight_proto.check import Gpu, counters, scan


class DriverWatch:
    """What the driver said before, under and after the load."""

    def __init__(self, gpus: Sequence[Gpu], before: tuple[scan.DeviceFacts, ...]) -> None:
        self.gpus, self.before = gpus, before
        self.after: tuple[scan.DeviceFacts, ...] = ()
        self.samples: list[scan.CounterSample] = []

    @property
    def signs(self) -> list[scan.Sign]:
        """Each thing once, the worst first."""
        signs = scan.scan(self.before) + (
            scan.load(self.before, self.after, self.samples) if self.after else []
        )
        return sorted(
            {(s.code, s.uuid): s for s in signs}.values(),
            key=lambda s: (-s.severity, s.code, s.uuid),
        )

    @property
    def held(self) -> dict[str, int]:
        """GPUs that had processes on them before ours came."""
        return {facts.uuid: facts.processes for facts in self.before if facts.processes}

    @property
    def complete(self) -> list[str]:
        """The GPUs that the driver said all about that it knows."""
        return scan.complete(self.before, self.after or self.before)

    async def poll(self) -> None:
        """Ask once more, after the load."""
        self.after = await counters.snapshot(self.gpus) or self.after
