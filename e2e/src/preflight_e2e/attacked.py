"""A real API server with everything installed that can be attacked, and one request of an attacker.

All charts with every part on, rendered by the umbrella: definitions, accounts, roles, policies and
webhooks, whose programs run with the arguments of their Deployments. The rows are `e2e/attacks`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trustme
from preflight_testing.apiserver import ApiServer, free_port
from preflight_testing.grove_kinds import GROVE
from preflight_testing.helm import (
    COMPUTEDOMAIN,
    GPU_SCHEDULER,
    PARTS,
    REQUIRED,
    UMBRELLA,
    Object,
    render,
)

__all__ = ["ATTACKS", "Attack", "Attacked", "attacked", "missing", "rows"]

ATTACKS: Final = Path(__file__).parents[2] / "attacks"
HOME: Final = "preflight"
AUTHENTICATED: Final = "system:authenticated"
PATIENCE: Final = 120.0
PORTS: Final = {
    "preflight-injector": ("preflight-webhook", "--port", "--plain-port"),
    "preflight-gpu-scheduler-webhook": ("preflight-gpu-scheduler", "--admission-port", "--port"),
    "preflight-appwrapper-webhook": ("preflight-appwrapper", "--tls-port", "--port"),
    "preflight-mnnvl-webhook": ("preflight-mnnvl", "--admission-port", "--port"),
}
"""By Deployment: the program, and its options for the two ports of a webhook."""
MEDIA: Final = {"patch": "application/merge-patch+json", "json": "application/json-patch+json"}
VERBS: Final = {
    **{"create": "POST", "update": "PUT", "patch": "PATCH", "json": "PATCH", "delete": "DELETE"},
    **{"get": "GET", "list": "GET"},
}


class Attack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One request of one attacker, and what must come of it: ``refused`` with these words (`rights`
    for those of RBAC), or harmless, as the object that comes back ``shows``.
    """

    row: str
    why: str
    """What the attacker would gain."""
    who: str
    """`NAME`, a user with rights of `world.toml`; `token ACCOUNT [on NODE]`, of ours; `node NAME`;
    `pod NAMESPACE`, an account without rights; `nobody`.
    """
    does: str
    """``VERB [NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]``, or ``call WEBHOOK PATH``."""
    finding: str = ""
    """Of which first review the attack was one that succeeded."""
    object: str = ""
    change: dict[str, Any] = {}
    json: list[dict[str, Any]] = []
    repeat: dict[str, int] = {}
    """By JSON pointer: how often the only entry of that list is there; # in it is the number."""
    refused: str = ""
    shows: dict[str, Any] = {}
    """By JSON pointer; `absent` for what is not there, `as before` for what is stored there."""
    open: str = ""
    """Why it succeeds all the same."""


def _read(file: Path) -> Object:
    """A file of rows, in which `OURS` stands for the group of Preflight's names."""
    return tomllib.loads(file.read_text().replace("OURS", "preflight.nvsentinel.nvidia.com"))


def rows() -> list[Attack]:
    """Every row of ``e2e/attacks``, with what its table says for all of its rows."""
    return [
        msgspec.convert({key: v for key, v in table.items() if key != "rows"} | row, Attack)
        for file in sorted(ATTACKS.glob("*.toml"))
        for table in _read(file).get("attacks", [])
        for row in table["rows"]
    ]


def missing() -> list[str]:
    """The webhooks' programs that are not beside this interpreter."""
    return [name for name, *_ in PORTS.values() if not (_bin() / name).exists()]


def _bin() -> Path:
    return Path(sys.executable).parent


def merged(into: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7386) of ``into``."""
    if not isinstance(change, Mapping):
        return change
    found = dict(into) if isinstance(into, Mapping) else {}
    for key, value in change.items():
        if value == "absent":
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def nulls(change: Any) -> Any:
    """The same merge patch as JSON: null where TOML says `absent`."""
    if isinstance(change, Mapping):
        return {key: nulls(value) for key, value in change.items()}
    return None if change == "absent" else change


def at(pointer: str, value: Any) -> Any:
    """What stands at a JSON pointer; `absent` where nothing does."""
    for raw in pointer.split("/")[1:]:
        key: Any = raw.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(key) if isinstance(value, list) else key]
        except (KeyError, IndexError, ValueError, TypeError):
            return "absent"
    return value


class Answered(msgspec.Struct):
    status: int
    body: Any

    @property
    def words(self) -> str:
        return str(self.body.get("message", "")) if self.status >= 400 else ""


class Attacked:
    """The cluster. Everything that an attacker sends is a dry run, so that rows are independent."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.webhooks: dict[str, int] = {}
        self._trusted = ssl.create_default_context(cafile=str(server.ca))
        self._http = http.client.HTTPSConnection(
            "127.0.0.1", int(server.server.rpartition(":")[2]), context=self._trusted, timeout=60
        )
        self._kinds: dict[str, tuple[str, Object]] = {}
        self.objects: dict[str, Object] = {}

    def close(self) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "",
        groups: tuple[str, ...] = (),
        node: str = "",
        media: str = "application/json",
    ) -> Answered:
        """One request, as the administrator where there is no ``user``, and as nobody for `-`."""
        self._http.putrequest(method, path)
        if user != "-":
            self._http.putheader("Authorization", f"Bearer {self.server.token}")
        if user not in {"", "-"}:
            self._http.putheader("Impersonate-User", user)
            for group in (AUTHENTICATED, *groups):
                self._http.putheader("Impersonate-Group", group)
        if node:
            key = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"
            self._http.putheader(key, node)
        data = b"" if body is None else json.dumps(body).encode()
        self._http.putheader("Content-Type", media)
        self._http.putheader("Content-Length", str(len(data)))
        self._http.endheaders(data)
        answer = self._http.getresponse()
        text = answer.read()
        return Answered(answer.status, json.loads(text) if text.startswith(b"{") else {})

    def learn(self) -> None:
        """Find which resources there are, and where."""
        groups = self.ask("GET", "/apis").body["groups"]
        for where in (
            "/api/v1",
            *(f"/apis/{g['preferredVersion']['groupVersion']}" for g in groups),
        ):
            listed = self.ask("GET", where).body
            for each in listed.get("resources", ()):
                about = {"apiVersion": listed["groupVersion"], "kind": each["kind"]}
                if each.get("group"):  # of a subresource whose body is of another group
                    about["apiVersion"] = f"{each['group']}/{each['version']}"
                self._kinds.setdefault(each["name"], (where, about))

    def path(self, what: str) -> str:
        """Of ``[NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]``."""
        namespace, _, rest = what.partition("/")
        if namespace in self._kinds:
            namespace, rest = "", what
        where, _ = self._kinds[rest.partition("/")[0]]
        return f"{where}/namespaces/{namespace}/{rest}" if namespace else f"{where}/{rest}"

    def about(self, what: str) -> Object:
        """The apiVersion and kind of what is created there."""
        parts = what.partition("?")[0].split("/")
        parts = parts if parts[0] in self._kinds else parts[1:]
        _, known = self._kinds["/".join([parts[0], *parts[2:]])]
        return {"apiVersion": known["apiVersion"], "kind": known["kind"]}

    def body(self, attack: Attack) -> Any:
        if attack.json:
            return attack.json
        if attack.does.startswith("patch "):
            return nulls(attack.change)
        made = merged(self.objects[attack.object] if attack.object else {}, attack.change)
        for owner in made.get("metadata", {}).get("ownerReferences", ()):
            if owner["kind"] == "Node":
                owner["uid"] = self.ask("GET", self.path("nodes/" + owner["name"])).body[
                    "metadata"
                ]["uid"]
        for pointer, count in attack.repeat.items():
            above, _, last = pointer.rpartition("/")
            [entry] = at(pointer, made)
            text = json.dumps(entry)
            at(above, made)[last] = [json.loads(text.replace("#", str(n))) for n in range(count)]
        return made

    def who(self, name: str) -> dict[str, Any]:
        """The user of a role in words."""
        role, _, rest = name.partition(" ")
        match role:
            case "token":
                account, _, node = rest.partition(" on ")
                groups = ("system:serviceaccounts", f"system:serviceaccounts:{HOME}")
                user = f"system:serviceaccount:{HOME}:{account}"
                return {"user": user, "groups": groups, "node": node}
            case "node":
                return {"user": f"system:node:{rest}", "groups": ("system:nodes",)}
            case "nobody":
                return {"user": "-"}
            case "pod":
                groups = ("system:serviceaccounts", f"system:serviceaccounts:{rest}")
                return {"user": f"system:serviceaccount:{rest}:default", "groups": groups}
        return {"user": name}

    def does(self, attack: Attack) -> Answered:
        """What the API server, or the webhook that is called, answers."""
        verb, what, *more = attack.does.split()
        if verb == "call":
            return self.call(what, more[0], self.body(attack))
        path, body = self.path(what), self.body(attack)
        connects = path.partition("?")[0].endswith(("/exec", "/attach"))
        if verb not in {"get", "list"} and not connects:
            path += f"{'&' if '?' in path else '?'}dryRun=All"
        if verb == "create" and isinstance(body, dict):
            body = self.about(what) | body
        media = MEDIA.get(verb, "application/json")
        sends = None if verb in {"get", "list", "delete"} else body
        return self.ask(VERBS[verb], path, sends, media=media, **self.who(attack.who))

    def call(self, webhook: str, path: str, review: Object) -> Answered:
        """One review that somebody on the pods' network sends, who has no certificate; status 0
        where nothing is answered.
        """
        url = f"https://127.0.0.1:{self.webhooks[webhook]}{path}"
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(url, json.dumps(review).encode(), head, method="POST")
        unsure = ssl.create_default_context()
        unsure.check_hostname, unsure.verify_mode = False, ssl.CERT_NONE
        try:
            with urllib.request.urlopen(request, context=unsure) as answer:
                response = json.load(answer)["response"]
        except urllib.error.HTTPError as refused:
            with refused:
                return Answered(refused.code, {"message": refused.read().decode()})
        except OSError:  # no handshake, or cut off after one
            return Answered(0, {})
        if patch := response.pop("patch", None):
            response["patch"] = json.loads(base64.b64decode(patch))
        denied = {} if response["allowed"] else {"message": response["status"]["message"]}
        return Answered(200 if response["allowed"] else 403, response | denied)

    def judged(self, attack: Attack, answer: Answered) -> str:
        """Why the attack is neither refused as its row says, nor harmless as it says; empty where
        it is.
        """
        if attack.refused:
            words = "cannot " if attack.refused == "rights" else attack.refused
            if 400 <= answer.status < 500 and words in answer.words:
                return ""
            return f"{answer.status} {answer.words or 'the request was granted'}"
        if answer.status >= 300:
            return f"{answer.status} {answer.words}: not judged, for nothing came of it"
        wanted = dict(attack.shows)
        for pointer in [each for each, value in wanted.items() if value == "as before"]:
            stored = self.ask("GET", self.path(attack.does.split()[1])).body
            wanted[pointer] = at(pointer, stored)
        wrong = {
            pointer: at(pointer, answer.body)
            for pointer, value in wanted.items()
            if at(pointer, answer.body) != value
        }
        return f"the answer shows {wrong}" if wrong else ""


@contextmanager
def attacked(home: Path, assets: Path, *, certified: bool = False) -> Iterator[Attacked]:
    """Everything installed, and what `e2e/attacks/world.toml` has made; ``certified``: webhooks
    that serve API servers with a client certificate alone.
    """
    with ExitStack() as stack:
        more = ["--enable-admission-plugins=NodeRestriction"]
        if certified:
            more.append(f"--admission-control-config-file={_shown(home)}")
        server = ApiServer(home, assets, authorization="Node,RBAC", more=more)
        cluster = Attacked(stack.enter_context(server))
        stack.callback(cluster.close)
        world = _read(ATTACKS / "world.toml")
        cluster.objects = world["object"]
        _install(cluster, stack, home, world)
        for each in world["made"]:
            _make(cluster, each)
        yield cluster


def _shown(home: Path) -> Path:
    """kube-apiserver's admission configuration: it shows webhooks a certificate."""
    authority = trustme.CA()
    (home / "client-ca.crt").write_bytes(authority.cert_pem.bytes())
    issued = authority.issue_cert(common_name="kube-apiserver")
    user = {
        "client-certificate-data": base64.b64encode(issued.cert_chain_pems[0].bytes()).decode(),
        "client-key-data": base64.b64encode(issued.private_key_pem.bytes()).decode(),
    }
    config = {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}
    (home / "webhooks.kubeconfig").write_text(json.dumps(config))
    group = "apiserver.config.k8s.io/v1"
    each = {
        "apiVersion": group,
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(home / "webhooks.kubeconfig"),
    }
    names = ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
    plugins = [{"name": name, "configuration": each} for name in names]
    found = home / "admission.yaml"
    body = {"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": plugins}
    found.write_text(json.dumps(body))
    return found


def _make(cluster: Attacked, each: Object) -> None:
    """An object that is there, and its status."""
    body = merged(cluster.objects[each["object"]], each.get("change", {}))
    where = cluster.path(each["at"])
    made = cluster.ask(
        "POST", where, cluster.about(each["at"]) | body, **cluster.who(each.get("by", ""))
    )
    assert made.status == 201, (each, made)
    if status := each.get("status"):
        path = f"{where}/{made.body['metadata']['name']}/status"
        who = cluster.who(each.get("says", ""))
        answer = cluster.ask("PATCH", path, {"status": status}, media=MEDIA["patch"], **who)
        assert answer.status == 200, (each, answer)


def _install(cluster: Attacked, stack: ExitStack, home: Path, world: Object) -> None:
    values: Object = {path.name: {"enabled": True} for path in PARTS.iterdir() if path.is_dir()}
    for part in (COMPUTEDOMAIN, GPU_SCHEDULER):
        values[part.name] |= REQUIRED[part]
    known = home / "client-ca.crt"
    if known.exists():
        for part in world["webhooks"]:
            values[part]["webhook"] = {"clientCAConfigMap": known.stem}
    objects = render(UMBRELLA, merged(values, world["values"]), namespace=HOME)
    objects += [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": file.stem, "namespace": HOME},
            "data": {"ca.crt": file.read_text()},
        }
        for file in home.glob(known.name)
    ]
    for definition in [*GROVE, *(o for o in objects if o["kind"] == "CustomResourceDefinition")]:
        cluster.server.define(definition)
    cluster.learn()
    for name, labels in world["namespaces"].items():
        if name != "kube-system":
            body = {"metadata": {"name": name, "labels": labels}}
            assert cluster.ask("POST", "/api/v1/namespaces", body).status in {201, 409}
    plurals = {
        about["kind"]: name for name, (_, about) in cluster._kinds.items() if "/" not in name
    }
    hooks = []
    left = {"Deployment", "DaemonSet", "Job", "CronJob", "CustomResourceDefinition", "Namespace"}
    for o in objects:
        if o["kind"].endswith("WebhookConfiguration"):
            hooks.append(o)
        elif o["kind"] not in left:
            namespace = o["metadata"].get("namespace")
            plural = plurals[o["kind"]]
            what = f"{namespace}/{plural}" if namespace else plural
            answer = cluster.ask("POST", cluster.path(what), o)
            assert answer.status == 201, (o, answer)
    _people(cluster, objects, world)
    authority = trustme.CA()
    bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    health = []
    for name, (program, port_option, plain_option) in PORTS.items():
        port, plain = free_port(), free_port()
        [o] = [o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"] == name]
        more = [port_option, str(port), plain_option, str(plain), "--host", "127.0.0.1"]
        _start(cluster, stack, home / name, o, objects, program, more, authority)
        cluster.webhooks[name] = port
        health.append(plain)
    for plain in health:
        _until(lambda: _ready(plain), f"a webhook at {plain} is ready")  # noqa: B023
    for o in hooks:
        for hook in o["webhooks"]:
            service = hook["clientConfig"].pop("service")
            known = cluster.webhooks
            port = known.get(service["name"]) or known[f"{service['name']}-webhook"]
            hook["clientConfig"] |= {
                "url": f"https://127.0.0.1:{port}{service['path']}",
                "caBundle": bundle,
            }
        answer = cluster.ask("POST", cluster.path(plurals[o["kind"]]), o)
        assert answer.status == 201, answer
    _in_force(cluster)


def _people(cluster: Attacked, objects: list[Object], world: Object) -> None:
    """Bind the roles of people, which kube-controller-manager gathers into the cluster's own."""
    group = "rbac.authorization.k8s.io"

    def bind(what: str, name: str, role: str, user: str) -> None:
        body = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        answer = cluster.ask("POST", cluster.path(what), body)
        assert answer.status == 201, answer

    roles = cluster.ask("GET", cluster.path("clusterroles")).body["items"]
    for person in ("view", "edit", "admin"):
        gathered = {
            "view": ["view"],
            "edit": ["edit", "view"],
            "admin": ["admin", "edit", "view"],
        }[person]
        for role in roles:
            labels = role["metadata"].get("labels", {})
            if any(labels.get(f"{group}/aggregate-to-{name}") == "true" for name in gathered):
                name = role["metadata"]["name"]
                for namespace in ("team", "plain"):
                    bind(f"{namespace}/rolebindings", f"{person}-{name}", name, person)
    for kind in world["kinds"]:
        where = cluster._kinds[kind][0]
        group_of = "" if where == "/api/v1" else where.split("/")[2]
        rules = [{"apiGroups": [group_of], "resources": [kind], "verbs": ["*"]}]
        body = {"metadata": {"name": f"only-{kind}"}, "rules": rules}
        assert cluster.ask("POST", cluster.path("clusterroles"), body).status == 201
        bind("clusterrolebindings", f"only-{kind}", f"only-{kind}", f"only {kind}")
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    body = {"metadata": {"name": "everything"}, "rules": rules}
    assert cluster.ask("POST", cluster.path("clusterroles"), body).status == 201
    for namespace in ("team", "plain"):
        bind(f"{namespace}/rolebindings", "everything", "everything", "all")


def _start(
    cluster: Attacked,
    stack: ExitStack,
    folder: Path,
    deployment: Object,
    objects: list[Object],
    program: str,
    more: list[str],
    authority: trustme.CA,
) -> None:
    """A Deployment's program, with its own arguments, configuration and account."""
    folder.mkdir()
    pod = deployment["spec"]["template"]["spec"]
    arguments = [each.replace("=/", f"={folder}/") for each in pod["containers"][0]["args"]]
    kept = {v["name"]: v for v in pod["volumes"]}
    for mount in pod["containers"][0]["volumeMounts"]:
        place = folder / mount["mountPath"].strip("/")
        place.mkdir(parents=True)
        if known := kept[mount["name"]].get("configMap"):
            [data] = [
                o["data"]
                for o in objects
                if o["kind"] == "ConfigMap" and o["metadata"]["name"] == known["name"]
            ]
            for name, text in data.items():
                (place / name).write_text(text)
            continue
        issued = authority.issue_cert("127.0.0.1")
        (place / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (place / "tls.crt").write_bytes(b"".join(c.bytes() for c in issued.cert_chain_pems))
        (place / "ca.crt").write_bytes(authority.cert_pem.bytes())
        (place / "mark.key").write_bytes(b"k" * 64)
    token = cluster.server.token_of(HOME, pod["serviceAccountName"])
    environment = {
        "KUBECONFIG": str(cluster.server.kubeconfig(folder / "kubeconfig", token)),
        "POD_NAME": deployment["metadata"]["name"],
        "POD_NAMESPACE": HOME,
        "NODE_NAME": "n1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(_bin() / program), *arguments, *more],
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)


def _ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
        return bool(answer.status == 200)
    return False


def _until(holds: Any, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.1)


def _in_force(cluster: Attacked) -> None:
    """Wait for what was made last: a policy of its own, and the webhooks."""
    last = {"metadata": {"name": "last"}}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["configmaps"],
        "operations": ["CREATE"],
    }
    name = [{"name": "called-last", "expression": "object.metadata.name == 'last'"}]
    policy = {
        **last,
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": name,
            "validations": [{"expression": "false", "message": "the last one"}],
        },
    }
    bound = {**last, "spec": {"policyName": "last", "validationActions": ["Deny"]}}
    for plural, body in (
        ("validatingadmissionpolicies", policy),
        ("validatingadmissionpolicybindings", bound),
    ):
        assert cluster.ask("POST", cluster.path(plural), body).status == 201

    def refused() -> bool:
        path = f"{cluster.path('default/configmaps')}?dryRun=All"
        return "the last one" in cluster.ask("POST", path, last).words

    def injected() -> bool:
        path = f"{cluster.path('team/pods')}?dryRun=All"
        pod = cluster.objects["gpu-pod"]
        return "initContainers" in cluster.ask("POST", path, pod).body.get("spec", {})

    _until(refused, "policies in force")
    _until(injected, "webhooks called")
