"""Agents with a defect: torchrun as the check starts it, with one function of the rank replaced.
``MUTANT`` names the defect.

Run in the agent's place (``-m allreduce_testing.gangs.mutants``); nothing of this is in the
product.
"""

from __future__ import annotations

import ctypes
import json
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


def after_reduce(spoil: Callable[[Any, Any], None]) -> None:
    """Have ``spoil(data, before)`` follow each large all-reduce of the mutant rank."""
    import torch.distributed as dist

    real = dist.all_reduce

    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        before = tensor.clone()
        done = real(tensor, *args, **kwargs)
        if tensor.numel() > 1 and mine():
            spoil(tensor, before)
        return done

    dist.all_reduce = reduce


def before_reduce(act: Callable[[], None]) -> None:
    """Have the mutant rank ``act`` before its second large all-reduce and each later one."""
    import torch.distributed as dist

    real, seen = dist.all_reduce, [0]

    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        seen[0] += tensor.numel() > 1
        if tensor.numel() > 1 and seen[0] >= 2 and mine():
            act()
        return real(tensor, *args, **kwargs)

    dist.all_reduce = reduce


def on_the_way_in(spoil: Callable[[Any], None]) -> None:
    """Have ``spoil(data)`` go before each large all-reduce of the mutant rank: its part of the sum
    is wrong, for all.
    """
    import torch.distributed as dist

    real = dist.all_reduce

    def reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() > 1 and mine():
            spoil(tensor)
        return real(tensor, *args, **kwargs)

    dist.all_reduce = reduce


def give_twice(data: Any) -> None:
    data.mul_(2)


def give_nothing(data: Any) -> None:
    data.zero_()


def give_flipped_bits(data: Any) -> None:
    import torch

    data.view(torch.int32)[12352:12384] ^= 1 << 22


def swap_chunks(data: Any, _: Any) -> None:
    half = data.numel() // 2
    first = data[:half].clone()
    data[:half] = data[half : 2 * half]
    data[half : 2 * half] = first


def flip_bit(data: Any, _: Any) -> None:
    import torch

    bits = data.view(torch.int32)
    bits[12345] ^= 1


def keep_own(data: Any, before: Any) -> None:
    data.copy_(before)


def add_again(data: Any, before: Any) -> None:
    data.add_(before)


def take_away(data: Any, before: Any) -> None:
    data.sub_(before)


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
    before_reduce(hang)
    if os.environ["TEST_HOME"].endswith(f"rank-{os.environ['MUTANT_RANK']}"):
        vars(agent)["kill"] = lambda pid: None
        agent.asleep = lambda left: True


def slow() -> None:
    """Launch late: the others' side of the rendezvous stands open meanwhile."""
    real = agent.launch

    def launch(argv: list[str]) -> None:
        time.sleep(1.5 if mine_by_node(argv) else 0)
        real(argv)

    agent.launch = launch


def no_rendezvous() -> None:
    """Whatever port the leader names, the rendezvous there does not work."""

    def launch(argv: list[str]) -> None:
        raise ConnectionError("DistNetworkError: the server socket has failed")

    agent.launch = launch


def slow_unnamed() -> None:
    """As `slow`, and the first launch has torchrun's own name for the rendezvous, which everybody
    knows.
    """
    real = agent.launch

    def launch(argv: list[str]) -> None:
        first = json.loads(os.environ["PREFLIGHT_WORKER_ORDER"])["master_port"] == int(
            os.environ["MASTER_PORT_GIVEN"]
        )
        time.sleep(1.5 if mine_by_node(argv) else 0)
        real([word for word in argv if not (first and word.startswith("--rdzv-id="))])

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


SPOILT = {
    "swapped-chunks": swap_chunks,
    "flipped-bit": flip_bit,
    "own-copy": keep_own,
    "doubled-rank": add_again,
    "dropped-rank": take_away,
    "previous-iteration": hand_out_old,
}
GIVEN = {
    "part-doubled": give_twice,
    "part-dropped": give_nothing,
    "part-with-flipped-bits": give_flipped_bits,
}
ACTS = {
    "die": die,
    "crash": crash,
    "hang": hang,
    "stop": stop,
    "ecc": ecc,
    "tcp": say_tcp,
    "topology-file": obey_topology_file,
}
PREPARED = {
    "die-at-launch": die_at_launch,
    "stuck": stuck,
    "slow": slow,
    "no-rendezvous": no_rendezvous,
    "wall-clock": wall_clock,
    "slow-unnamed": slow_unnamed,
}


def main() -> None:
    what = os.environ["MUTANT"]
    if what in SPOILT:
        after_reduce(SPOILT[what])
    elif what in GIVEN:
        on_the_way_in(GIVEN[what])
    elif what in ACTS:
        before_reduce(ACTS[what])
    elif what in PREPARED:
        PREPARED[what]()
    else:
        sys.exit(f"no mutant {what}")
    agent.main()


if __name__ == "__main__":
    main()
