"""Makes matrix/schema.json, for editors and reviewers of the matrix."""

from __future__ import annotations

import json

from preflight_testing.matrix.scenario import MATRIX, json_schema


def main() -> None:
    (MATRIX / "schema.json").write_text(json.dumps(json_schema(), indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
