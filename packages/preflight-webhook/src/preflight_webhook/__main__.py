"""`python -m preflight_webhook` is the command `preflight-webhook`."""

from preflight_webhook.cli import main

main()
