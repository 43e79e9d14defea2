"""What no schema can say of a configuration: rows about values, rules about what stands together.

Each problem is one sentence that begins with the path of what is wrong. What the API server, or a
check itself, would refuse in every pod is refused here once, or by the schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final, TypeVar

from preflight_kube.api.quantities import parse_quantity
from preflight_proto import gang_source, names, settings
from preflight_proto.durations import parse_duration

from preflight_webhook.config import addresses, container_shape
from preflight_webhook.config.devices import DeviceVariables
from preflight_webhook.config.extra_volumes import covered, normal

T = TypeVar("T")

SHORTEST: Final = 1.0
"""Seconds; every check refuses less."""
LONGEST: Final = 7 * 24 * 3600.0
"""Seconds that a check or a gang may be given; more is a typing error."""
MOST_DURATION: Final = 64
"""Characters."""
_ENV_NAMES: Final = frozenset(value for key, value in vars(names).items() if key[:4] == "ENV_")
_DEVICES: Final = DeviceVariables()
_NOT_IN_CONTAINER: Final = {
    "name": "it follows from the check's name",
    "image": "set the check's image",
    "resources": "set the check's resources",
    "securityContext": "set the check's securityContext",
    "restartPolicy": "a check ends before the next one begins",
}
"""Fields of a container that a check's ``container`` may not hold, and why."""


def problems(raw: dict[str, Any]) -> list[str]:
    """What is wrong with the configuration ``raw`` beyond its schema."""
    problems = [
        f"{path}: {problem}"
        for where, kind, rule in _VALUES
        for path, value in _at(raw, where, kind)
        if (problem := rule(value))
    ]
    return [*problems, *chain.from_iterable(rule(raw) for rule in _RELATIONS)]


def _at(raw: Any, where: str, kind: type[T], path: str = "") -> Iterator[tuple[str, T]]:
    """(path, value) of each value at ``where`` that is of ``kind``: keys with dots between them,
    ``key[]`` for each of a list, ``*`` for any key. ``path``: of ``raw`` itself.
    """
    head, _, rest = where.partition(".")
    key = head.removesuffix("[]")
    for name in (raw if key == "*" else raw.keys() & {key}) if isinstance(raw, dict) else ():
        here = f"{path}.{name}" if path else str(name)
        value: Any = raw[name]
        there = [(here, value)]
        if key != head:
            listed = value if isinstance(value, list) else ()
            there = [(f"{here}[{i}]", entry) for i, entry in enumerate(listed)]
        for at, entry in there:
            if rest:
                yield from _at(entry, rest, kind, at)
            elif isinstance(entry, kind):
                yield at, entry


def _shown(text: str) -> str:
    """``text`` as it may stand in a sentence: without line breaks, and not long."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"


def _duration(value: str) -> str:
    if not value:
        return ""
    try:
        seconds = parse_duration(value) if len(value) <= MOST_DURATION else LONGEST + 1
    except OverflowError:
        seconds = LONGEST + 1
    except ValueError as error:
        return f"{' '.join(str(error).split())[:200]}."
    if seconds > LONGEST:
        return f'"{_shown(value)}" is longer than {LONGEST / 3600:g} hours; set less.'
    if seconds < SHORTEST:
        return f'"{_shown(value)}" is not a duration of at least 1s; set e.g. 300s, 10m or 1h30m.'
    return ""


def _variable(name: str) -> str:
    """A pattern's `$` lets a line break at the end pass."""
    return f'"{_shown(name)}" ends with a line break; remove that.' if name[-1:] == "\n" else ""


def _amount(value: object) -> str:
    try:
        nothing = value is not None and parse_quantity(str(value)) <= 0
    except ValueError as error:
        return f"{error}."
    return f'"{value}" is nothing; set more, or leave it out.' if nothing else ""


def _folder(path: str) -> str:
    if ".." not in path.split("/"):
        return ""
    return f'"{_shown(path)}" has ".." in it; write the folder itself.'


def _below_volume(path: str) -> str:
    if not path.startswith("/") and ".." not in path.split("/"):
        return ""
    return f'"{path[:60]}" is not a path below the volume; remove / at its beginning and "..".'


_VALUES: Final[tuple[tuple[str, type[Any], Callable[[Any], str]], ...]] = (
    ("checkTimeout", str, _duration),
    ("gangTimeout", str, _duration),
    ("checks[].timeout", str, _duration),
    *(
        (f"checks[].container.{key}", object, f"not allowed here ({why}); remove it.".format)
        for key, why in sorted(_NOT_IN_CONTAINER.items())
    ),
    ("checks[].env[].name", str, _variable),
    ("checks[].container.env[].name", str, _variable),
    ("checks[].resources.*.*", object, _amount),
    ("checks[].extraVolumes[].hostPath.path", str, _folder),
    ("checks[].extraVolumeMounts[].subPath", str, _below_volume),
    ("platformConnector.socketDir", str, _folder),
)
"""(where, of which type, what is wrong with a value there), a row each."""


def _overrides(raw: dict[str, Any]) -> Iterator[str]:
    for path, check in _at(raw, "checks[]", dict):
        for where in ("env", "container.env"):
            given = {
                variable["name"]: str(variable.get("value") or "")
                for _, variable in _at(check, f"{where}[]", dict)
                if isinstance(variable.get("name"), str)
            }
            for problem in settings.problems(_image(check), given):
                yield f"{path}.{where}: {problem}"
        for key in container_shape.SHAPES:
            if isinstance(over := check.get(key), dict):  # else the schema says so
                left = {k: v for k, v in over.items() if k not in _NOT_IN_CONTAINER}
                shaped = left if key == "container" else over
                yield from container_shape.problems(key, shaped, f"{path}.{key}")


def _image(check: dict[str, Any]) -> str:
    image = check.get("image")
    return image if isinstance(image, str) else ""


def _required(raw: dict[str, Any]) -> Iterator[str]:
    for path, check in _at(raw, "checks[]", dict):
        if check.get("required") is True or check.get("name") == names.DCGM_DIAG:
            for key in ("envPatterns", "mountPatterns"):
                if check.get(key):
                    yield f"{path}.{key}: a required check inherits nothing of the workload, which could bend it; remove one of the two."


def _device_variables(raw: dict[str, Any]) -> Iterator[str]:
    section = raw.get("deviceVariables")
    if not isinstance(section, dict) or section.get("enabled") is not True:
        return
    resource = section.get("resourceName", _DEVICES.resource_name)
    if resource not in [name for _, name in _at(raw, "gpuDetection.resourceNames[]", object)]:
        yield (
            f'deviceVariables.resourceName: "{resource}" is not among gpuDetection.resourceNames, so no pod would be known '
            "to have such GPUs; add it there."
        )
    own: set[str] = set()
    if not isinstance(section.get("variables"), list):
        own = {variable.name for variable in _DEVICES.variables}
    for path, variable in _at(raw, "deviceVariables.variables[]", dict):
        if not isinstance(name := variable.get("name"), str):
            continue
        if name in own:
            yield f'{path}.name: "{name}" is there twice; remove one.'
        if name in _ENV_NAMES:
            yield f'{path}.name: "{name}" is a setting of the checks; use another one.'
        if variable.get("annotation") is not None and variable.get("value"):
            yield f"{path}: it has an annotation and a value; remove one of the two."
        own.add(name)
    for where in ("checks[].env[].name", "checks[].container.env[].name"):
        for path, name in _at(raw, where, str):
            if name in own:
                yield f"{path}: {name} is one of deviceVariables, which say the GPUs of the pod; remove one of the two."


def _gang_sources(raw: dict[str, Any]) -> Iterator[str]:
    for path, listed in _at(raw, "gangDiscovery.sources", object):
        yield from gang_source.problems(listed, path)


def _extra_volumes(raw: dict[str, Any]) -> Iterator[str]:
    socket_dir = next(
        (d for _, d in _at(raw, "platformConnector.socketDir", str)), names.SOCKET_DIR
    )
    known: dict[str, tuple[Any, str]] = {}
    for path, volume in _at(raw, "checks[].extraVolumes[]", dict):
        if not isinstance(name := volume.get("name"), str):
            continue
        if sum(volume.get(key) is not None for key in ("hostPath", "emptyDir")) != 1:
            yield f"{path}: has not one of hostPath and emptyDir; set one of them."
        first, where = known.setdefault(name, (volume, path))
        if first != volume:
            yield f'{path}.name: "{name}" is another volume than at {where}; the checks are in one pod, so give it a name of its own.'
        elif where != path and where.partition(".")[0] == path.partition(".")[0]:
            yield f'{path}.name: "{name}" is also the name at {where}; remove one of them.'
    for path, folder in _at(raw, "checks[].extraVolumes[].hostPath.path", str):
        if not _folder(folder) and _leads_to(normal(folder), socket_dir):
            yield (
                f'{path}: "{folder}" leads to {socket_dir}, where the platform connector takes reports about the node; '
                "give a folder that does not contain it."
            )


def _leads_to(path: str, folder: str) -> bool:
    """Whether a volume at ``path`` of the node shows ``folder`` or a part of it; /run and /var/run
    are one on most nodes.
    """
    ours, other = (re.sub(r"^/var/run(?=/|$)", "/run", normal(text)) for text in (path, folder))
    return (
        path in {"/", "/var"} or f"{other}/".startswith(f"{ours}/") or ours.startswith(other + "/")
    )


def _extra_mounts(raw: dict[str, Any]) -> Iterator[str]:
    for check_path, check in _at(raw, "checks[]", dict):
        extra = {name for _, name in _at(check, "extraVolumes[].name", str)}
        taken: dict[str, str] = {}
        for path, mount in _at(check, "extraVolumeMounts[]", dict, check_path):
            name, at = mount.get("name"), mount.get("mountPath")
            if isinstance(name, str) and name not in extra:
                what = ", ".join(sorted(extra)) or "none"
                yield f'{path}.name: "{name[:60]}" is none of the check\'s extraVolumes ({what}); add the volume there.'
            if not isinstance(at, str) or not at.startswith("/"):
                continue
            why = ""
            if ".." in at.split("/") or ":" in at:
                why = 'has ".." or ":" in it; write the path itself.'
            elif ours := covered(normal(at)):
                why = f"would cover {ours}, which the check needs; mount it beside or below that."
            elif other := taken.get(normal(at)):
                why = f"is also that of {other}; mount them at different paths."
            if why:
                yield f'{path}.mountPath: "{at[:60]}" {why}'
            taken.setdefault(normal(at), path)


def _engines(raw: dict[str, Any]) -> Iterator[str]:
    seen: set[str] = set()
    for where in ("dcgm.hostengineAddr", "dcgm.hostengineAddr[]"):
        for path, text in _at(raw, where, str):
            for address in map(str.strip, text.split(",")):
                if problem := addresses.engine_problem(address):
                    yield f"{path}: {problem}"
                elif address in seen:
                    yield f'{path}: "{_shown(address)}" is listed twice; remove one.'
                seen.add(address)


def _same_names(raw: dict[str, Any]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for path, name in _at(raw, "checks[].name", str):
        check = path.removesuffix(".name")
        if (first := seen.setdefault(name, check)) != check:
            yield f'{path}: "{name}" is also the name of {first}; give each check a name of its own.'


_RELATIONS: Final = (
    _overrides,
    _required,
    _device_variables,
    _gang_sources,
    _extra_volumes,
    _extra_mounts,
    _engines,
    _same_names,
)
