"""`python -m preflight_gang` is `preflight-gang`."""

from preflight_gang.cli import main

main()
