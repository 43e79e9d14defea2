"""`python -m preflight_gang` is `preflight-gang`."""

from .cli import main

main()
