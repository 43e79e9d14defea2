"""Agents with a defect: torchrun as the check starts it, with one function of the rank replaced.
``MUTANT`` names the defect.

Run in the agent's place (``-m allreduce_testing.gangs.mutants``); nothing of this is in the
product.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from check_nccl_allreduce.worker import agent


def mine() -> bool:
    """Whether this rank is the one that MUTANT_RANK names; with MUTANT_IN=probes it is sound until
    it serves probes.
    """
    probing = os.environ.get("NCCL_ALGO") == "Ring"  # set for probes alone
    in_time = probing or os.environ.get("MUTANT_IN") != "probes"
    return in_time and os.environ.get("RANK") == os.environ.get("MUTANT_RANK", "1")


def mine_by_node(argv: list[str]) -> bool:
    """The same, before there are ranks."""
    return f"--node-rank={os.environ.get('MUTANT_RANK', '1')}" in argv


def once() -> bool:
    """True for the first to ask in a test: later launches are sound."""
    try:
        Path(os.environ["MUTANT_ONCE"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def around_reduce(
    before: Callable[[Any], object] = lambda data: None,
    after: Callable[[Any, Any], object] = lambda data, old: None,
    first: int = 1,
) -> None:
    """Have the mutant rank do something with its data ``before`` and ``after`` each large
    all-reduce, from the ``first`` one on; what it had before is ``old``.
    """
    import torch.distributed as dist

    real, seen = dist.all_reduce, [0]

    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen[0] += tensor.numel() > 1
        mutant = tensor.numel() > 1 and seen[0] >= first and mine()
        old = tensor.clone() if mutant else None
        if mutant:
            before(tensor)
        done = real(tensor, *args, **kwargs)
        if mutant:
            after(tensor, old)
        return done

    dist.all_reduce = reduce


def flip(data: Any, part: slice, bit: int) -> None:
    import torch

    data.view(torch.int32)[part] ^= 1 << bit


def swap_chunks(data: Any, _: Any) -> None:
    half = data.numel() // 2
    first = data[:half].clone()
    data[:half] = data[half : 2 * half]
    data[half : 2 * half] = first


def hand_out_old(data: Any, _: Any) -> None:
    """What the last all-reduce gave."""
    now = data.clone()
    if OLD:
        data.copy_(OLD[-1])
    OLD[:] = [now]


OLD: list[Any] = []


def die() -> None:
    if os.environ.get("MUTANT_ONCE") is None or once():
        os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


def hang() -> None:
    time.sleep(3600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def obey_topology_file() -> None:
    """As slow as NCCL under a wrong topology file, which gloo does not read."""
    time.sleep(1.0 if os.environ.get("NCCL_TOPO_FILE") else 0)


def ecc() -> None:
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def say_tcp() -> None:
    """What NCCL prints where it found nothing better, which gloo does not."""
    print("node-1:77:123 [0] NCCL INFO Using network Socket", flush=True)


def die_at_launch() -> None:
    """torchrun itself is killed where the ranks should meet."""
    real = agent.launch

    def launch(argv: list[str]) -> None:
        if mine_by_node(argv):
            die()
        real(argv)

    agent.launch = launch


def stuck() -> None:
    """The mutant rank hangs, and cannot be killed: it says of itself that it sits in the kernel."""
    around_reduce(lambda _: hang(), first=2)
    if os.environ["TEST_HOME"].endswith(f"rank-{os.environ['MUTANT_RANK']}"):
        vars(agent)["kill"] = lambda pid: None
        vars(agent)["asleep"] = lambda left: True


def no_rendezvous() -> None:
    """Whatever port the leader names, the rendezvous there does not work."""

    def launch(argv: list[str]) -> None:
        raise ConnectionError("DistNetworkError: the server socket has failed")

    agent.launch = launch


def slow() -> None:
    """Launch once the file MUTANT_UNTIL exists: the others' side of the rendezvous stands open
    meanwhile.
    """
    real = agent.launch

    def launch(argv: list[str]) -> None:
        while mine_by_node(argv) and not Path(os.environ["MUTANT_UNTIL"]).exists():
            time.sleep(0.02)
        real(argv)

    agent.launch = launch


def wall_clock() -> None:
    """Nothing is broken: each timed all-reduce is timed by the wall clock too, which starts when
    the device has nothing else to do.
    """
    import torch
    from check_nccl_allreduce.worker import measure

    real = measure.timed

    def timed(work: Any, align: Any, device: Any) -> float:
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        seconds = real(work, align, device)
        wall = time.perf_counter() - begun
        with Path(os.environ["TEST_HOME"], "wall-clock").open("a") as log:
            log.write(f"{seconds / wall:.4f}\n")
        return seconds

    measure.timed = timed


SPOILT: dict[str, Callable[[Any, Any], object]] = {
    "swapped-chunks": swap_chunks,
    "flipped-bit": lambda data, _: flip(data, slice(12345, 12346), 0),
    "own-copy": lambda data, old: data.copy_(old),
    "doubled-rank": lambda data, old: data.add_(old),
    "dropped-rank": lambda data, old: data.sub_(old),
    "previous-iteration": hand_out_old,
}
"""Defects of the all-reduce's result, for this rank alone."""
GIVEN: dict[str, Callable[[Any], object]] = {
    "part-doubled": lambda data: data.mul_(2),
    "part-with-flipped-bits": lambda data: flip(data, slice(12352, 12384), 22),
}
"""Defects of its input: the rank's part of the sum is wrong, for all."""
ACTS: dict[str, Callable[[], None]] = {
    "die": die,
    "crash": crash,
    "hang": hang,
    "stop": stop,
    "ecc": ecc,
    "tcp": say_tcp,
    "topology-file": obey_topology_file,
}
"""Acts of the rank before its second all-reduce and each later one."""
PREPARED: dict[str, Callable[[], None]] = {
    "die-at-launch": die_at_launch,
    "stuck": stuck,
    "slow": slow,
    "no-rendezvous": no_rendezvous,
    "wall-clock": wall_clock,
}


def main() -> None:
    what = os.environ["MUTANT"]
    if what in SPOILT:
        around_reduce(after=SPOILT[what])
    elif what in GIVEN:
        around_reduce(GIVEN[what])
    elif what in ACTS:
        around_reduce(lambda _: ACTS[what](), first=2)
    elif what in PREPARED:
        PREPARED[what]()
    else:
        sys.exit(f"no mutant {what}")
    agent.main()


if __name__ == "__main__":
    main()
