"""`python -m preflight_webhook` is the command `preflight-webhook`."""

from .cli import main

main()
