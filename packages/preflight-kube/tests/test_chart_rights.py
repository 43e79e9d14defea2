"""What is made of a table of rights. API servers are tried with the tables of the services."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from preflight_kube.api.rights import Account, Chart, Constraint, Right

COMPILER = Path(__file__).resolve().parents[1] / "chart_rights.py"
spec = importlib.util.spec_from_file_location("chart_rights", COMPILER)
assert spec is not None
assert spec.loader is not None
chart_rights = importlib.util.module_from_spec(spec)
spec.loader.exec_module(chart_rights)


def made(*rights: Right, when: str = "") -> str:
    account = Account(component="part", rights=rights, when=when)
    return str(chart_rights.compiled(Chart(name="c", accounts=(account,))))


def test_what_is_read_only_has_a_role_and_no_policy() -> None:
    text = made(Right(resource="pods", verbs="get list"))
    assert "verbs: [get, list]" in text
    assert "ValidatingAdmissionPolicy" not in text


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete"])
def test_every_right_that_writes_has_a_policy_that_sees_every_write(verb: str) -> None:
    text = made(Right(resource="pods", verbs=verb))
    assert "operations: [CREATE, UPDATE, DELETE]" in text
    assert "['the object as a whole']" in text


def test_an_object_is_identified_before_and_after_a_request() -> None:
    ours = Constraint("o.mine", "it is ours")
    text = made(Right(resource="pods", verbs="patch", holds=(ours,)))
    assert "variables.written.all(o, o.mine)" in text
    assert "[variables.before]" in text


def test_a_name_is_rbacs_but_for_what_is_created() -> None:
    text = made(Right(resource="leases", verbs="get update create", names=("one",)))
    role = text.partition("rules:")[2].partition("---")[0]
    named, free = role.split("  - apiGroups")[1:]
    assert "resourceNames: [one]" in named
    assert "verbs: [get, update]" in named
    assert "resourceNames" not in free
    assert "verbs: [create]" in free
    assert "o.?metadata.?name.orValue('') in ['one']" in text


def test_helpers_of_the_chart_stand_for_what_it_says() -> None:
    right = Right(
        resource="nodes/status", verbs="patch", fields=("status.capacity[{count}]",), when="count"
    )
    text = made(right, when="!off")
    assert '{{- if not (include "c.off" .) }}' in text
    assert '{{- if include "c.count" . }}' in text
    assert """(k in ['{{ include "c.count" . }}'])""" in text
    assert "{count}" not in text


def test_a_prefix_of_keys_leaves_out_what_it_says() -> None:
    fields = ("metadata.annotations[a/*]", "!metadata.annotations[a/b]")
    text = made(Right(resource="pods", verbs="patch", fields=fields))
    assert "((k in [] || k.startsWith('a/')) && !(k in ['a/b']))" in text


def test_a_right_on_each_of_a_list_is_a_range_and_its_policy_sees_all_of_them() -> None:
    text = made(Right(each="kinds", verbs="create", fields=("*",), policy="p", when="kinds"))
    looped = '{{- range include "c.kinds" . | fromJsonArray }}'
    assert text.count(looped) == len(("the role", "the policy"))
    assert text.count("apiGroups: [{{ .group | quote }}]") == len(("the role", "the policy"))
    assert "writes * of kinds, and nothing else" in text


def test_what_is_whole_somebody_elses_to_say_is_not_compared_and_still_held() -> None:
    ours = Constraint("o.mine", "it is ours")
    text = made(Right(resource="pods", verbs="create", fields=("*",), holds=(ours,)))
    assert "variables.after.filter" not in text
    assert "variables.written.all(o, o.mine)" in text


def test_finalizers_that_may_go_may_not_come() -> None:
    text = made(Right(resource="pods", verbs="update", fields=("metadata.finalizers[-*]",)))
    after, before = (f"variables.{side}_metadata_finalizers" for side in ("after", "before"))
    assert f"({after}.all(g, g in {before}) ? [] : ['metadata.finalizers'])" in text


def test_a_review_is_a_question_and_no_policy_is_asked_about_it() -> None:
    review = "subjectaccessreviews"
    text = made(Right(resource=review, group="authorization.k8s.io", verbs="create"))
    assert f"resources: [{review}]" in text
    assert "ValidatingAdmissionPolicy" not in text


def test_there_is_no_role_where_there_is_no_right() -> None:
    text = made(
        Right(resource="pods", verbs="get", when="a"), Right(resource="x", verbs="get", when="b")
    )
    assert '{{- if or (include "c.a" .) (include "c.b" .) }}\n---\napiVersion: rbac' in text
