"""Make ``templates/generated-rights.yaml`` of each chart of the table ``rights.py`` of its service:
accounts, roles, their bindings, and for every account and kind that it writes a
ValidatingAdmissionPolicy.

Run it where all members are installed; running it twice changes nothing.

A policy compares the whole object with what it was, key by key as they come, so that a field which
Kubernetes adds is compared, too; only what the table names may differ. ``dyn`` is for CEL's type
checker, which knows objects and not maps. Nothing is walked over in a map of more than 1,000
entries, whose length is a tenant's to choose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from preflight_kube.api.rights import Account, Chart, Constraint, Right

CHARTS = Path(__file__).resolve().parents[2] / "charts" / "preflight" / "charts"
SERVICES = (
    "preflight_appwrapper",
    "preflight_computedomain",
    "preflight_gang",
    "preflight_gpu_scheduler",
    "preflight_mnnvl",
    "preflight_webhook",
)
OPERATIONS = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
KEPT = ("managedFields", "resourceVersion", "generation")
"""What the API server itself keeps of an object's metadata."""
NAMED = ("name", "namespace", "uid", "creationTimestamp")
"""What it lets nobody change, and every new object has."""
COMMON = {"excluded", "name", "secret", "selfManaged"}
"""Helpers that the charts' library has for all."""
MANY = "more than 1,000 {}, which nobody compares: make the object anew with fewer"

Tree = dict[str, "Tree"]


def helper(name: str) -> str:
    """The named template of the charts' library, else of the chart."""
    return f"{'preflight' if name in COMMON else '{chart}'}.{name}"


def tree(fields: Iterable[str]) -> Tree:
    """Of paths; what is free has nothing below it."""
    root: Tree = {"apiVersion": {}, "kind": {}, "metadata": {key: {} for key in (*KEPT, *NAMED)}}
    for field in fields:
        path, _, key = field.lstrip("!").partition("[")
        inner, _, rest = key.partition("]")
        at = root
        for part in path.split("."):
            at = at.setdefault(part, {})
        if key:
            at = at.setdefault(f"{'!' if field[0] == '!' else ''}[{inner}]", {})
        for part in filter(None, rest.split(".")):
            at = at.setdefault(part, {})
    return root


def listed(values: Iterable[str]) -> str:
    """A CEL list of texts."""
    return "[" + ", ".join(f"'{value}'" for value in values) + "]"


def changed(after: str, before: str, at: Tree, path: str = "") -> Iterator[str]:
    """CEL lists of the paths below `path` that differ and may not."""
    keys = [key.strip("[]") for key in at if key[0] == "["]
    dot = f"{path}." if path else ""
    if keys == ["-*"]:
        yield f"({after}.all(g, g in {before}) ? [] : ['{path}'])"
    elif path.endswith(("schedulingGates", "finalizers")):
        items = listed(key.lstrip("-") for key in keys)
        name = "g.name" if path.endswith("schedulingGates") else "g"
        left = f"{before}.filter(g, !({name} in {items}))"
        new = [after, f"{after}.filter(g, !({name} in {items}))"][keys[0][0] != "-"]
        same = f"{after} == {before} || {new} == {left}"
        yield f"({same} ? [] : ['{path}'])"
    elif keys == ["*"]:
        below = " + ".join(changed("dyn(w)", "dyn(v)", at["[*]"], ""))
        same = f"{after}.map(w, w.name) == {before}.map(w, w.name)"
        yield f"({same} ? [] : ['the list of {path}'])"
        each = f"{before}.filter(v, v.name == w.name).map(v, ({below}).join(', ')).join('')"
        yield f"{after}.map(w, {each}).filter(s, s != '')"
    elif keys:
        exact = [key for key in keys if not key.endswith("*")]
        starts = "".join(f" || k.startsWith('{k[:-1]}')" for k in keys if k.endswith("*"))
        but = listed(key[2:-1] for key in at if key[0] == "!")
        free = f"(k in {listed(exact)}{starts}){f' && !(k in {but})' if but != '[]' else ''}"
        terms = " + ".join(differing(after, before, free, f"'{path} ' + k"))
        few = f"size({after}) + size({before}) <= 2000"
        many = MANY.format(path.rpartition(".")[2])
        yield f"({after} == {before} ? [] : {few} ? {terms} : ['{many}'])"
    else:
        free = f"k in {listed(at)}"
        yield from differing(after, before, free, f"'{dot}' + k" if dot else "k")
        for key, below in at.items():
            if below:
                yield from changed(*(of(one, key) for one in (after, before)), below, dot + key)


def joined(lists: Iterable[str]) -> list[str]:
    """Lines that make one CEL list of several."""
    return [f"        {'+ ' if number else ''}{each}" for number, each in enumerate(lists)]


def nothing(key: str) -> str:
    """CEL: what a field that is not there is compared as."""
    return "[]" if key in {"webhooks", "finalizers", "schedulingGates"} else "{}"


def of(value: str, key: str) -> str:
    """CEL: a field of a map, empty where it is not there."""
    if re.fullmatch(r"variables\.(after|before)\w*", value):
        return f"{value}_{key}"
    return f"{value}[?'{key}'].orValue({nothing(key)})"


def differing(after: str, before: str, free: str, named: str) -> Iterator[str]:
    """CEL lists of the keys of two maps that differ and are not `free`."""
    yield f"{after}.filter(k, !({free}) && !(k in {before} && {before}[k] == {after}[k])).map(k, {named})"
    yield f"{before}.filter(k, !({free}) && !(k in {after})).map(k, {named})"


def variables(trees: Iterable[Tree]) -> Iterator[tuple[str, str]]:
    """Names and CEL of the maps that are compared, before and after."""
    seen: dict[str, str] = {}

    def walk(at: Tree, name: str) -> None:
        for key, below in at.items():
            if below and key[0] not in "![":
                for side in ("after", "before"):
                    seen.setdefault(
                        f"{side}{name}_{key}",
                        f"variables.{side}{name}[?'{key}'].orValue(dyn({nothing(key)}))",
                    )
                walk(below, f"{name}_{key}")

    for one in trees:
        walk(one, "")
    yield "after", "request.operation == 'DELETE' ? dyn({}) : dyn(object)"
    yield "before", "request.operation == 'CREATE' ? dyn({}) : dyn(oldObject)"
    yield from seen.items()


def writes(right: Right) -> list[str]:
    """The operations that it lets pass. Reviews are questions: nothing is stored, and no policy is
    asked about them.
    """
    if right.group == "authorization.k8s.io":
        return []
    return sorted({OPERATIONS[verb] for verb in right.verbs.split() if verb in OPERATIONS})


def asked(right: Right) -> str:
    """CEL: whether a request is for this right."""
    subresource = right.what.partition("/")[2]
    said = f"request.operation in {listed(writes(right))} && request.?subResource.orValue('') == '{subresource}'"
    return said + (
        f" && request.?namespace.orValue('') == '{right.namespace}'" if right.namespace else ""
    )


def when(name: str, lines: Iterable[str]) -> list[str]:
    """Lines of a template that are there where a helper says something, or one of several with `|`
    between them.
    """
    if not name:
        return [*lines]
    said = [f'include "{helper(each.lstrip("!"))}" .' for each in name.split("|")]
    if len(said) > 1:
        said = ["or " + " ".join(f"({each})" for each in said)]
    return [
        f"{{{{- if {f'not ({said[0]})' if name[0] == '!' else said[0]} }}}}",
        *lines,
        "{{- end }}",
    ]


def policy(account: Account, name: str, rights: list[Right]) -> list[str]:
    """Of one account and the rights that have it in common, and its binding."""
    user = f"system:serviceaccount:{{namespace}}:{account.name}"
    fields = "; ".join(
        dict.fromkeys(f"{', '.join(r.fields)} of {r.what}" for r in rights if r.fields)
    )
    trees = [tree(right.fields) for right in rights]
    head = ["  name: {name}-" + name, *labels(account)]
    rules = [
        line
        for group, resource, named, each in dict.fromkeys(
            (*place(r), r.when, r.each) for r in rights
        )
        for line in when(
            named,
            ranged(
                each,
                [
                    f"      - apiGroups: [{group}]",
                    '        apiVersions: ["*"]',
                    f"        resources: [{resource}]",
                    "        operations: [CREATE, UPDATE, DELETE]",
                ],
            ),
        )
    ]
    unless_deleted = "request.operation == 'DELETE' ? [] : "
    chain = [
        line
        for right, at in zip(rights, trees, strict=True)
        for line in when(
            right.when,
            [
                f"        {asked(right)} ?",
                f"        ({unless_deleted if 'DELETE' in writes(right) else ''}",
                *joined(
                    ["[]"]
                    if right.fields == ("*",)
                    else changed("variables.after", "variables.before", at)
                ),
                "        ) :",
            ],
        )
    ]
    validations = ["    - expression: variables.changed == []"]
    validations += refusal(user, fields, "variables.changed.join(', ')")
    for right in rights:
        named = Constraint(
            f"o.?metadata.?name.orValue('') in {listed(right.names)}",
            f"its name is {' or '.join(right.names)}",
        )
        holds = (*right.holds, named) if right.names else right.holds
        for held, of_what in (
            *((held, "written") for held in holds),
            *((held, "new") for held in right.gives),
        ):
            validations += when(
                right.when,
                [
                    "    - expression: >-",
                    f"        !({asked(right)}) || variables.{of_what}.all(o, {held.cel})",
                    *refusal(user, f"{right.what} only where {held.sentence}", ""),
                ],
            )
    lines = [
        *("---", "apiVersion: admissionregistration.k8s.io/v1", "kind: ValidatingAdmissionPolicy"),
        *("metadata:", *head, "spec:", "  failurePolicy: Fail", "  matchConstraints:"),
        *("    resourceRules:", *rules, "  matchConditions:", "    - name: by-whom"),
        *(f"      expression: request.userInfo.username == '{user}'", "  variables:"),
        *(f"    - name: {key}\n      expression: {quoted(cel)}" for key, cel in variables(trees)),
        "    - name: new\n      expression: \"request.operation == 'DELETE' ? [] : [variables.after]\"",
        "    - name: written\n      expression: \"variables.new + (request.operation == 'CREATE' ? [] : [variables.before])\"",
        "    - name: changed\n      expression: >-",
        *(*chain, "        ['the object as a whole']", "  validations:", *validations, "---"),
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicyBinding",
        *(
            "metadata:",
            *head,
            "spec:",
            "  policyName: {name}-" + name,
            "  validationActions: [Deny, Audit]",
        ),
    ]
    return where_any(rights, lines)


def refusal(user: str, may: str, more: str) -> list[str]:
    """What whoever is refused reads: what, who may what, what was found, what to do."""
    who = f"{user} writes {may}"
    space = "request.?namespace.orValue('')"
    where = f"request.resource.resource + ' ' + ({space} == '' ? '' : {space} + '/')"
    where += " + request.?name.orValue('')"
    found = f" + ', but this request changes ' + {more}" if more else ""
    what = "; find out who uses it."
    return [
        "      reason: Forbidden",
        f"      message: {quoted(f'{who}, and nothing else{what}')}",
        "      messageExpression: >-",
        f"        {where} + ': {who.replace(chr(39), chr(92) + chr(39))}, and nothing else'{found} + '{what}'",
    ]


def quoted(text: str) -> str:
    """A YAML text in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def labels(account: Account) -> list[str]:
    """Lines of an object's metadata."""
    return [
        "  labels:",
        f'    {{{{- include "preflight.labels" (dict "root" . "component" "{account.component}") | nindent 4 }}}}',
    ]


def rules(rights: Iterable[Right]) -> list[str]:
    """RBAC's; names cannot be asked for in a create."""
    lines = []
    for right in rights:
        group, resource = place(right)
        head = [f"  - apiGroups: [{group}]", f"    resources: [{resource}]"]
        verbs = right.verbs.split()
        own = [
            line
            for named in (True, False)
            if (some := [verb for verb in verbs if bool(right.names and verb != "create") is named])
            for line in (
                *head,
                *([f"    resourceNames: [{', '.join(right.names)}]"] if named else []),
                f"    verbs: [{', '.join(some)}]",
            )
        ]
        lines += when(right.when, ranged(right.each, own))
    return lines


def place(right: Right) -> tuple[str, str]:
    """Its groups and resources, as a list in YAML has them."""
    if right.each:
        return "{{ .group | quote }}", "{{ .resource }}"
    group = (right.group,) if isinstance(right.group, str) else right.group
    resource = (right.resource,) if isinstance(right.resource, str) else right.resource
    return ", ".join(f'"{one}"' for one in group), ", ".join(resource)


def ranged(name: str, lines: Sequence[str]) -> Sequence[str]:
    """Lines of a template that are there for each item of a helper's list."""
    if not name:
        return lines
    return [
        f'{{{{- range include "{helper(name)}" . | fromJsonArray }}}}',
        *lines,
        "{{- end }}",
    ]


def where_any(rights: Iterable[Right], lines: Iterable[str]) -> list[str]:
    """Lines of a template that are there where one of the rights is."""
    needed = dict.fromkeys(right.when for right in rights)
    return when("" if "" in needed else "|".join(needed), lines)


def role(account: Account, namespace: str, rights: Sequence[Right]) -> list[str]:
    """A Role, or a ClusterRole, and its binding."""
    kind = "Role" if namespace else "ClusterRole"
    lines = []
    for of_kind, body in (
        (kind, ["rules:", *rules(rights)]),
        (
            f"{kind}Binding",
            [
                *("roleRef:", "  apiGroup: rbac.authorization.k8s.io"),
                *(f"  kind: {kind}", f"  name: {account.name}", "subjects:"),
                *("  - kind: ServiceAccount", f"    name: {account.name}"),
                '    namespace: "{namespace}"',
            ],
        ),
    ):
        lines += [
            "---",
            "apiVersion: rbac.authorization.k8s.io/v1",
            f"kind: {of_kind}",
            "metadata:",
        ]
        lines += [f"  name: {account.name}"]
        lines += [f'  namespace: "{namespace}"'] if namespace else []
        lines += [*labels(account), *body]
    return where_any(rights, lines)


def accounts(chart: Chart) -> Iterator[str]:
    """Lines of the whole file."""
    yield "{{- /* Generated from the service's table rights.py by `nox -s codegen`; change that. */}}"
    for short in chart.accounts:
        account = replace(short, name=short.name or f"{{name}}-{short.component}")
        lines = ["---", "apiVersion: v1", "kind: ServiceAccount", "metadata:"]
        lines += [f"  name: {account.name}", '  namespace: "{namespace}"', *labels(account)]
        lines += ["{{- with (.Values.serviceAccount).annotations }}", "  annotations:"]
        lines += ["    {{- toYaml . | nindent 4 }}", "{{- end }}"]
        lines += ["automountServiceAccountToken: false"]
        places = sorted({right.namespace for right in account.rights})
        for place in places:
            lines += role(account, place, [r for r in account.rights if r.namespace == place])
        by_policy: dict[str, list[Right]] = {}
        for right in account.rights:
            if writes(right):
                base = right.what.partition("/")[0]
                by_policy.setdefault(right.policy or f"{account.component}-{base}", []).append(
                    right
                )
        for name, rights in by_policy.items():
            lines += policy(account, name, rights)
        yield from when(account.when, lines)


def compiled(chart: Chart) -> str:
    """The file of one chart."""
    text = "\n".join(when(chart.when, accounts(chart))) + "\n"
    words = {"chart": chart.name, "namespace": "{{ .Release.Namespace }}"}

    def filled(match: re.Match[str]) -> str:
        return words.get(match[1], f'{{{{ include "{helper(match[1])}" . }}}}')

    for _ in range(3):  # an account's name is of helpers, and a helper's of the chart's name
        text = re.sub(r"(?<!\{)\{([a-zA-Z][a-zA-Z-]*)\}(?!\})", filled, text)
    return text


def main() -> None:
    """Write one file for each service."""
    for module in SERVICES:
        chart = import_module(f"{module}.api.rights").RIGHTS
        out = CHARTS / chart.name / "templates" / "generated-rights.yaml"
        out.write_text(compiled(chart))


if __name__ == "__main__":
    main()
