"""The network link of a fake node, for processes that share this machine's: what they send over
TCP, the kernel paces.

Python loads this module in every process that has its folder on PYTHONPATH. Where node.json has
{"network": {"sends_mbit": number}}, a thread sets SO_MAX_PACING_RATE, for which nobody needs to be
root, on each TCP socket that the process opens, whatever library opens it; so it is in processes
that it forks. The rate is each connection's own. What is received is not slowed: the other end's
node does that.
"""

import json
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

SO_MAX_PACING_RATE = 47  # bytes a second; include/uapi/asm-generic/socket.h
PAUSE = 0.02  # seconds between two looks for new sockets


def pace(rate):
    """Pace every TCP socket of this process, for ever."""
    seen = set()
    while True:
        sockets = {}
        # Fifty times a second in each process: a Path for each would be felt.
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError):  # closed meanwhile
                if stat.S_ISSOCK((status := os.fstat(int(name))).st_mode):
                    sockets[status.st_ino] = int(name)
        for inode in sockets.keys() - seen:
            with suppress(OSError), socket.socket(fileno=os.dup(sockets[inode])) as one:
                if (
                    one.family in {socket.AF_INET, socket.AF_INET6}
                    and one.type == socket.SOCK_STREAM
                ):
                    one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
        seen = sockets.keys()
        time.sleep(PAUSE)


def start():
    threading.Thread(target=pace, args=(RATE,), daemon=True).start()


RATE = 0
with suppress(OSError, ValueError):
    facts = json.loads(Path(os.environ.get("FAKE_NODE_JSON", "")).read_text())
    RATE = int(facts.get("network", {}).get("sends_mbit", 0) * 1e6 / 8)
if RATE:
    start()
    os.register_at_fork(after_in_child=start)
