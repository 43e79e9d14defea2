"""`python -m preflight_mnnvl`."""

from .cli import main

if __name__ == "__main__":
    main()
