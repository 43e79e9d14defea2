"""The stranger's check as a program that remembers a signal before its imports, as the README shows
it.
"""

from __future__ import annotations

from preflight_proto.sigterm import remember

if __name__ == "__main__":
    remember()
    from preflight_proto.check import run_main
    from stranger import CHECK

    run_main(CHECK)
