"""What crosses a component border in Preflight.

The modules of this package are the *contract* (``names``, ``durations``, ``stamp``,
``gang_source``, ``roster``, ``result``, ``policy``, ``admitted``): plain data and pure functions
that webhook, gang controller and checks share; :mod:`preflight_proto.nvml` asks the driver's
library for checks and for what runs on each node. The *check kit* that a check is built on is
:mod:`preflight_proto.check`; it needs the extra ``check``, as ``wire`` does, which speaks gRPC.
Importing this package loads neither gRPC nor NVML.
"""
