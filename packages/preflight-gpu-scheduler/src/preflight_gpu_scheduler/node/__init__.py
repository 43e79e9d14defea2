"""The agent: what NVML, the Node and its pods say of the GPUs of one node."""
