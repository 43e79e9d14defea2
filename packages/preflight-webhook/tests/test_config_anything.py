"""Whatever a file holds, it is a configuration or refused in sentences, and what is taken makes
pods that the API server takes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from preflight_webhook.config.config import Config, ConfigError, parse

ONE = "checks: [{name: dcgm-diag, image: d, %s}]"
REFUSED = {
    "keys of two kinds": ("{1: a, foo: b}", "line 1, column 2: the key is not a string"),
    "a fraction": ("dcgm: {diagLevel: 1.0}", "dcgm.diagLevel: "),
    "endless CPU": (ONE % "resources: {limits: {cpu: .inf}}", "not a finite number"),
    "a long time": (f"checkTimeout: {'9' * 400}h", "longer than 168 hours"),
    "itself": ("a: &a [*a]", "contains itself"),
    "depth": ("[" * 1_200, "nested"),
    "a list of tables": (ONE % "container: {env: {A: b}}", "checks[0].container.env"),
    "a number as a variable": (ONE % "container: {env: [{name: A, value: 1}]}", "env[0].value"),
    "two sources": (
        ONE
        % "container: {env: [{name: A, value: b, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}",
        "keep one",
    ),
    "a probe": (ONE % "container: {livenessProbe: {}}", "livenessProbe"),
    "a user": (ONE % "securityContext: {runAsUser: root}", "securityContext.runAsUser"),
    "a variable's name": (ONE % 'env: [{name: "a\u00e4"}]', "env[0].name"),
    "a variable's name of two lines": (ONE % 'env: [{name: "A\\n"}]', "env[0].name: "),
    "another of two lines": (
        ONE % 'container: {env: [{name: "A\\n"}]}',
        "container.env[0].name: ",
    ),
    "a terminal": (ONE % "container: {tty: true}", "unknown field tty; remove it, or write"),
    "a path outside": (
        ONE % "container: {volumeMounts: [{name: a, mountPath: /a, subPath: ../b}]}",
        "subPath",
    ),
    "a token for ever": (
        "platformConnector: {auth: {expirationSeconds: 99999999999}}",
        "must be at most 4294967296",
    ),
    "a folder above": ("platformConnector: {socketDir: /a/../b}", '".."'),
    "a list as a name": ("checks: [{name: [1], image: {a: b}}]", "checks[0].name"),
    "a key of two lines": ('{"checks": {"\\n": "\\b"}}', "U+0008"),
    "a volume of two lines": (
        ONE % 'extraVolumeMounts: [{name: "a\\n", mountPath: /a}]',
        "extraVolumeMounts[0].name",
    ),
    "a null as amounts": (ONE % "resources: {limits: {cpu: -1}}", "is nothing"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_in_sentences_with_its_place(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert any(says in problem for problem in caught.value.problems), caught.value.problems
    for problem in caught.value.problems:
        assert problem.endswith(".")
        assert "\n" not in problem
        assert len(problem) < 1_000
        assert problem.isprintable()


ACCEPTED = {
    "variables": "container: {env: [{name: A, value: b}, {name: B, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
    "removed": "container: {terminationMessagePolicy: null}, securityContext: {runAsUser: null}",
    "command": "container: {command: [a], args: ['1'], workingDir: /w}",
    "security": "securityContext: {privileged: true, capabilities: {add: [SYS_ADMIN]}, runAsUser: 0, runAsNonRoot: false}",
    "mounts": "container: {volumeMounts: [{name: preflight-tmp, mountPath: /a, readOnly: true, subPath: b/c}]}",
}


@pytest.mark.parametrize("more", ACCEPTED.values(), ids=ACCEPTED)
def test_what_kubernetes_takes_is_taken(more: str) -> None:
    assert parse(ONE % more).checks


texts = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.dates()
    | st.binary(max_size=4)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts | st.integers() | st.none() | st.booleans(), inner, max_size=4)
        | st.sets(texts, max_size=3)
    ),
    max_leaves=12,
)


def sections(schema: dict[str, Any], every: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that are nearly what the schema wants: known keys, now and then with anything."""
    if "$ref" in schema:
        return sections(every[schema["$ref"].rpartition("/")[2]], every)
    if "anyOf" in schema:
        return st.one_of([sections(one, every) for one in schema["anyOf"]]) | values
    if schema.get("properties"):
        known = {key: sections(one, every) | values for key, one in schema["properties"].items()}
        return st.fixed_dictionaries({}, optional=known)
    match schema.get("type"):
        case "array" if isinstance(schema.get("items"), dict):
            return st.lists(sections(schema["items"], every), max_size=2)
        case "string":
            return st.sampled_from(
                ["", "a", "1s", "9" * 400 + "h", "/a", "a\n", "\x00", "\ud800", "nccl-loopback"]
            )
        case "integer" | "number":
            return st.integers() | st.floats()
        case "boolean":
            return st.booleans()
    return st.sampled_from(schema["enum"]) if "enum" in schema else values


def nearly() -> st.SearchStrategy[Any]:
    from preflight_webhook.config.config import json_schema

    schema = json_schema()
    return sections(schema, schema["$defs"])


def judged(text: str) -> None:
    try:
        config = parse(text)
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem
            assert "\n" not in problem
            problem.encode()  # printable wherever it is written to
    else:
        assert isinstance(config, Config)


@given(values)
def test_any_yaml_value_is_a_configuration_or_refused_in_sentences(value: Any) -> None:
    judged(yaml.safe_dump(value, allow_unicode=True))


@given(nearly())
def test_any_nearly_right_configuration_is_taken_or_refused_in_sentences(value: Any) -> None:
    judged(yaml.safe_dump(value))


@given(st.text(max_size=60) | st.text("{}[]:,-&*!|>'\"%@` \n\tab1.", max_size=60))
def test_any_text_is_a_configuration_or_refused_in_sentences(text: str) -> None:
    judged(text)


@given(nearly())
def test_json_is_read_as_yaml_is(value: Any) -> None:
    judged(json.dumps(value, default=str))
