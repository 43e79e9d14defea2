"""`shape_link.py MBIT`: bound what this pod sends, by a token bucket on its eth0. Needs NET_ADMIN, and the kernel's sch_tbf.

An init container of a pod runs it: all containers of a pod share one network. Nothing of Preflight is imported.
"""

import sys

from pyroute2 import IPRoute

BURST = 128 * 1024  # bytes
ROOT = 0x10000  # the handle 1:

with IPRoute() as link:
    [device] = link.link_lookup(ifname="eth0")
    link.tc("replace", "tbf", device, ROOT, rate=f"{int(sys.argv[1])}mbit", burst=BURST, latency="100ms")
print(f"eth0 sends at most {sys.argv[1]} Mbit/s")
