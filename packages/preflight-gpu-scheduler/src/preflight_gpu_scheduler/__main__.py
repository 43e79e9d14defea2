"""`python -m preflight_gpu_scheduler` is `preflight-gpu-scheduler`."""

from .cli import main

main()
