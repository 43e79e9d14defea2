"""The JSON Schema of a check's variables, which its program prints for ``--schema``;
:mod:`preflight_proto.settings` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..names import container_name
from .settings import described

COMMON_VARIABLES: Final = (
    "^(PATH|HOME|TMPDIR|TZ|LANG|PREFLIGHT_LOG|NODE_IP|PREFLIGHT_USER_TOPOLOGY)$",
    "^(LC|LD|SSL|NVIDIA|CUDA|OMP|MKL|MALLOC)_",
    "^PYTHON[A-Z]+$",
    "^(https?|no|all|HTTPS?|NO|ALL)_(proxy|PROXY)$",
)
"""What any image's interpreter, C library and driver may read, and what the webhook gives to checks
besides their settings.
"""


def schema(
    check: str,
    about: str,
    classes: Sequence[type[Any]],
    defaults: Mapping[str, str],
    tool_variables: Sequence[str],
) -> dict[str, Any]:
    """JSON Schema 2020-12 of the variables of ``classes``.

    A later class may ask more strictly for a variable of an earlier one: its word counts.
    ``tool_variables``: regular expressions of what the check's tools and libraries read themselves.
    ``defaults``: see :func:`.settings.manual`.
    """
    variables = {
        env: variable for cls in classes for env, variable in described(cls, defaults).items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": check,
        "description": about,
        "x-image": container_name(check),
        "type": "object",
        "properties": variables,
        "patternProperties": {
            name: {"type": "string"} for name in [*COMMON_VARIABLES, *tool_variables]
        },
        "additionalProperties": False,
        "required": sorted(env for env, variable in variables.items() if "default" not in variable),
    }
