"""`python -m preflight_mnnvl`."""

from preflight_mnnvl.cli import main

if __name__ == "__main__":
    main()
