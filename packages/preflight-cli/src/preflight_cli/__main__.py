"""`python -m preflight_cli` is `preflight`."""

from preflight_cli.cli import main

main()
