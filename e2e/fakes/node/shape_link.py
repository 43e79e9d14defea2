"""`shape_link.py MBIT`: bound what this pod sends, to others and to itself, by token buckets. Needs
NET_ADMIN, and the kernel's sch_tbf.

An adapter that is slow is slow to its own pod, too: so what goes by lo is bound like what goes by
eth0.

An init container of a pod runs it: all containers of a pod share one network. Nothing of Preflight
is imported.
"""

import sys

from pyroute2 import IPRoute

BURST = 128 * 1024  # bytes
ROOT = 0x10000  # the handle 1:

with IPRoute() as link:
    for name in ("eth0", "lo"):
        [device] = link.link_lookup(ifname=name)
        link.tc(
            "replace",
            "tbf",
            device,
            ROOT,
            rate=f"{int(sys.argv[1])}mbit",
            burst=BURST,
            latency="100ms",
        )
print(f"eth0 and lo send at most {sys.argv[1]} Mbit/s")
