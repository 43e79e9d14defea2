"""`python -m preflight_appwrapper`."""

from preflight_appwrapper.cli import main

main()
