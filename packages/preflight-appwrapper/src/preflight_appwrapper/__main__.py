"""`python -m preflight_appwrapper`."""

from .cli import main

main()
