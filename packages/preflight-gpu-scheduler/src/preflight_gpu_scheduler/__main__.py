"""`python -m preflight_gpu_scheduler` is `preflight-gpu-scheduler`."""

from preflight_gpu_scheduler.cli import main

main()
