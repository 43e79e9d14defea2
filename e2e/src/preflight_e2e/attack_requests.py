"""The rows of `e2e/attacks`: one request of one attacker to a real API server with everything
installed (:mod:`.all_charts`), and what must come of it.
"""

from __future__ import annotations

import base64
import json
import ssl
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from preflight_testing.apidouble.patches import merge_patch
from preflight_testing.apiserver import ApiServer
from preflight_testing.fields import Answer, Impersonator
from preflight_testing.helm import Object

ATTACKS: Final = Path(__file__).parents[2] / "attacks"
HOME: Final = "preflight"
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


def read(file: Path) -> Object:
    """A file of rows, in which `OURS` stands for the group of Preflight's names."""
    return tomllib.loads(file.read_text().replace("OURS", "preflight.nvsentinel.nvidia.com"))


def rows() -> list[Attack]:
    """Every row of ``e2e/attacks``, with what its table says for all of its rows."""
    return [
        msgspec.convert({key: v for key, v in table.items() if key != "rows"} | row, Attack)
        for file in sorted(ATTACKS.glob("*.toml"))
        for table in read(file).get("attacks", [])
        for row in table["rows"]
    ]


def merged(into: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7386) of ``into``, in which `absent` takes something away."""
    return merge_patch(into, nulls(change))


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


class Attacked(Impersonator):
    """The cluster. Everything that an attacker sends is a dry run, so that rows are independent."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(server)
        self.webhooks: dict[str, int] = {}
        self.memory: dict[str, tuple[int, int]] = {}
        """Of each webhook the process, and the chart's limit in MiB."""
        self.kinds: dict[str, tuple[str, Object]] = {}
        self.objects: dict[str, Object] = {}
        self.rendered: list[Object] = []
        """All that the charts make, their Deployments too."""

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
                self.kinds.setdefault(each["name"], (where, about))

    def path(self, what: str) -> str:
        """Of ``[NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]``."""
        namespace, _, rest = what.partition("/")
        if namespace in self.kinds:
            namespace, rest = "", what
        where, _ = self.kinds[rest.partition("/")[0]]
        return f"{where}/namespaces/{namespace}/{rest}" if namespace else f"{where}/{rest}"

    def about(self, what: str) -> Object:
        """The apiVersion and kind of what is created there."""
        parts = what.partition("?")[0].split("/")
        parts = parts if parts[0] in self.kinds else parts[1:]
        _, known = self.kinds["/".join([parts[0], *parts[2:]])]
        return {"apiVersion": known["apiVersion"], "kind": known["kind"]}

    def body(self, attack: Attack) -> Any:
        if attack.json:
            return attack.json
        if attack.does.startswith("patch "):
            return nulls(attack.change)
        body = merged(self.objects[attack.object] if attack.object else {}, attack.change)
        for owner in body.get("metadata", {}).get("ownerReferences", ()):
            if owner["kind"] == "Node":
                owner["uid"] = self.ask("GET", self.path("nodes/" + owner["name"])).body[
                    "metadata"
                ]["uid"]
        for pointer, count in attack.repeat.items():
            above, _, last = pointer.rpartition("/")
            [entry] = at(pointer, body)
            text = json.dumps(entry)
            at(above, body)[last] = [json.loads(text.replace("#", str(n))) for n in range(count)]
        return body

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

    def does(self, attack: Attack) -> Answer:
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

    def call(self, webhook: str, path: str, review: Object) -> Answer:
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
                return Answer(refused.code, {"message": refused.read().decode()})
        except OSError:  # no handshake, or cut off after one
            return Answer(0, {})
        if patch := response.pop("patch", None):
            response["patch"] = json.loads(base64.b64decode(patch))
        denied = {} if response["allowed"] else {"message": response["status"]["message"]}
        return Answer(200 if response["allowed"] else 403, response | denied)

    def judged(self, attack: Attack, answer: Answer) -> str:
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
