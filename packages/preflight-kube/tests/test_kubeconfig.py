"""Kubeconfigs as kubectl reads them: several files, and users that a plug-in logs in."""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from preflight_kube.auth.connection import EARLY, by_kubeconfig, connection
from preflight_kube.auth.kubeconfig import KubeconfigError, chosen
from preflight_kube.errors import BadAccess

V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


def document(
    name: str, *, current: str | None = None, user: dict[str, Any] | None = None, **cluster: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", **cluster}}],
        "users": [{"name": name, "user": user or {"token": name}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    return {**made, "current-context": current} if current else made


def test_the_first_file_that_names_something_decides_and_files_add_up() -> None:
    first = document("a", user={"token": "first"})
    second = document("a", current="b", user={"token": "second"})
    trusts: Any = {"certificate-authority": "ca.crt"}
    third = document("b", current="a", **trusts)
    found = chosen([(Path("/1/c"), first), (Path("/2/c"), second), (Path("/3/c"), third)])
    assert (found.cluster["server"], found.user["token"]) == ("https://b", "b")
    assert found.cluster["certificate-authority"] == "/3/ca.crt", "beside the file that names it"
    late = document("a", current="a", user={"token": "late"})
    again = chosen([(Path("/e"), None), (Path("/1/c"), first), (Path("/4/c"), late)])
    assert again.user["token"] == "first"


WHOLE = document("a", current="a")
WRONG: list[tuple[Any, str]] = [
    ([], "is not a kubeconfig"),
    ({}, "no current-context is set"),
    ({"clusters": {}, "contexts": 5}, "contexts must be a list"),
    ({"users": [{"user": {}}]}, "an entry of users is not a name with a user"),
    (document("a", current="c"), 'current-context names "c", which is not among its contexts (a)'),
    ({**WHOLE, "clusters": []}, 'context a names "a", which is not among its clusters (none)'),
    ({**WHOLE, "users": document("b")["users"]}, "is not among its users (b)"),
    (document("a", current="a", server=""), "cluster a has no server"),
    *(
        (document("a", current="a", server=server), f'cluster a has the server "{server}", wh')
        for server in ("10.0.0.1:6443", "ftp://a", "https://a:99999", "https://[", "https://a..b")
    ),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_is_wrong_is_one_sentence(given: Any, says: str) -> None:
    with pytest.raises(KubeconfigError, match=r".") as caught:
        chosen([(Path("/c"), given)])
    assert says in str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def plugin(folder: Path, body: str, **more: Any) -> str:
    """A kubeconfig whose user a script logs in; the path of it."""
    script = folder / "log-in"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": V1, "command": "./log-in", "interactiveMode": "Never", **more}}
    (folder / "config").write_text(json.dumps(document("a", current="a", user=user)))
    return str(folder / "config")


def answer(version: str = V1, **status: Any) -> str:
    return f"print({json.dumps(json.dumps({'apiVersion': version, 'kind': 'ExecCredential', 'status': status}))})"


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_a_plug_in_s_token_is_used_until_shortly_before_it_expires(
    folder: Path, version: str
) -> None:
    end = datetime.now(UTC) + timedelta(hours=1)
    config = plugin(
        folder,
        answer(version, token="t", expirationTimestamp=end.strftime("%Y-%m-%dT%H:%M:%SZ")),
        apiVersion=version,
    )
    found = by_kubeconfig(config, os.environ)
    assert found.token == "t"
    assert found.expires is not None
    assert end.timestamp() - 1 - EARLY <= found.expires <= end.timestamp() - EARLY
    plugin(folder, answer(token="next"))
    assert found.again is not None
    assert found.again().token == "next"


def test_a_plug_in_is_told_what_the_protocol_says(folder: Path) -> None:
    body = f"""
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["apiVersion"] == {V1!r} and info["kind"] == "ExecCredential" and info["spec"]["interactive"] is False
assert info["spec"]["cluster"]["server"] == "https://a" and info["spec"]["cluster"]["config"] == {{"audience": "x"}}
assert sys.argv[1:] == ["get-token"] and os.environ["REGION"] == "north" and sys.stdin.read() == ""
{answer(token="told")}"""
    config = plugin(
        folder,
        body,
        args=["get-token"],
        env=[{"name": "REGION", "value": "north"}],
        provideClusterInfo=True,
    )
    told = json.loads(Path(config).read_text())
    told["clusters"][0]["cluster"]["extensions"] = [
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    ]
    Path(config).write_text(json.dumps(told))
    assert by_kubeconfig(config, os.environ).token == "told"


def test_what_a_plug_in_says_to_people_reaches_them(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    says = f"print('open https://login', file=sys.stderr)\n{answer(token='t')}"
    by_kubeconfig(plugin(folder, says), os.environ)
    assert capfd.readouterr() == ("", "open https://login\n")


SAID = {
    "sys.exit(3)": "ended with exit status 3; what it said is above",
    "print('log in first'); sys.exit(1)": 'ended with exit status 1 and printed "log in first"',
    "print('hello')": 'printed no ExecCredential as JSON but "hello"',
    "print('{}')": "printed no ExecCredential",
    answer(V1BETA1, token="t"): f"answered in {V1BETA1}, and the kubeconfig says {V1}",
    answer(): "answered with neither a token nor a client certificate",
    answer(clientCertificateData="c"): "one of clientCertificateData and clientKeyData",
    answer(token="t", expirationTimestamp="soon"): '"soon", which is not an RFC 3339 time',
    answer(
        token="t", expirationTimestamp="2001-01-01T00:00:00Z"
    ): "expired at 2001-01-01T00:00:00Z",
}
ASKED: list[tuple[dict[str, str], str]] = [
    ({"command": "no-such-plugin"}, "no-such-plugin is not on PATH; install it"),
    ({"command": "no-such", "installHint": "Get it from us."}, "is not on PATH; Get it from us."),
    ({"command": "./absent"}, "absent cannot be run (No such file or directory)"),
    ({"command": ""}, "exec has no command"),
    ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, f"known are {V1} and {V1BETA1}"),
]


@pytest.mark.parametrize(
    ("body", "more", "says"),
    [*((body, {}, says) for body, says in SAID.items()), *(("", *asked) for asked in ASKED)],
    ids=[*SAID.values(), *(says for _, says in ASKED)],
)
def test_what_goes_wrong_with_a_plug_in_is_one_sentence(
    folder: Path, body: str, more: dict[str, Any], says: str
) -> None:
    config = plugin(folder, body, **more)
    with pytest.raises(BadAccess, match=r".") as caught:
        by_kubeconfig(config, os.environ)
    said = str(caught.value)
    assert said.startswith(f"{config} (KUBECONFIG): ")
    assert (says in said, said.count("\n"), said[-1]) == (True, 0, "."), said


def test_a_token_in_an_answer_of_another_kind_is_in_no_sentence(folder: Path) -> None:
    config = plugin(folder, "print(json.dumps({'status': {'token': 'sesame'}}))")
    with pytest.raises(BadAccess, match="printed no ExecCredential; run it by hand") as caught:
        by_kubeconfig(config, os.environ)
    assert "sesame" not in str(caught.value)


def test_of_several_files_those_that_are_not_there_are_passed_over(folder: Path) -> None:
    config = plugin(folder, answer(token="t"))
    assert by_kubeconfig(f"/nowhere{os.pathsep}{config}", os.environ).token == "t"
    for listed in ("/nowhere", f"/nowhere{os.pathsep}/neither"):
        with pytest.raises(BadAccess, match="name a kubeconfig file"):
            by_kubeconfig(listed, os.environ)


def test_people_s_commands_know_kubectl_s_own_kubeconfig_and_services_do_not(
    tmp_path: Path,
) -> None:
    (own := tmp_path / ".kube").mkdir()
    plugin(own, answer(token="t"))
    environ = {"PATH": os.environ["PATH"]}
    assert connection(environ, home=tmp_path).token == "t"
    with pytest.raises(BadAccess, match=r"KUBECONFIG is not set .*set KUBECONFIG to a kubeconfig"):
        connection(environ)
    with pytest.raises(
        BadAccess, match=r"there is no /nowhere/\.kube/config, and this is not a pod"
    ):
        connection(environ, home=Path("/nowhere"))


@pytest.mark.parametrize(
    ("cluster", "user", "says"),
    [
        ({"proxy-url": "http://proxy:3128"}, {"token": "t"}, "its cluster has a proxy-url"),
        ({}, {"auth-provider": {"name": "oidc"}}, "an auth-provider, which is not known here"),
        ({}, {"token": "t", "as": "ada"}, r"its user acts as another \(as\), which is not known"),
        ({}, {"token": "t", "as-groups": ["readers"]}, "its user acts as another"),
        ({}, {"exec": {"command": "login"}}, "its user's exec has no apiVersion"),
        ({}, {"client-certificate-data": "bm9uc2Vuc2U="}, "cannot be used"),
        ({}, {"tokenFile": "/nowhere/token"}, "cannot be used"),
    ],
)
def test_a_user_or_cluster_that_cannot_be_used_is_refused_in_words(
    folder: Path, cluster: dict[str, Any], user: dict[str, Any], says: str
) -> None:
    config = document("a", current="a", user=user, **cluster)
    (folder / "config").write_text(json.dumps(config))
    with pytest.raises(BadAccess, match=says):
        by_kubeconfig(str(folder / "config"), os.environ)


def test_a_plug_in_beside_a_kubeconfig_of_the_working_folder_is_not_looked_for_on_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(folder, answer(token="beside"))
    (elsewhere := folder / "bin").mkdir()
    plugin(elsewhere, answer(token="on PATH"))
    monkeypatch.chdir(folder)
    environ = {**os.environ, "PATH": f"{elsewhere}{os.pathsep}{os.environ['PATH']}"}
    assert by_kubeconfig("config", environ).token == "beside"


@pytest.mark.parametrize("token", [{}, {"token": ""}, {"token": "of yesterday"}])
def test_a_token_s_file_goes_before_a_token_that_stands_beside_it(
    folder: Path, token: dict[str, str]
) -> None:
    (folder / "token").write_text("of today\n")
    config = document("a", current="a", user={**token, "tokenFile": "token"})
    (folder / "config").write_text(json.dumps(config))
    found = by_kubeconfig(str(folder / "config"), os.environ)
    assert (found.token, found.files) == ("of today", (folder / "token",))


@pytest.mark.parametrize("inside", ["client-certificate", "client-key"])
def test_a_certificate_in_a_file_may_have_its_key_in_the_kubeconfig(
    folder: Path, inside: str
) -> None:
    issued = trustme.CA().issue_cert("ada@example.com")
    parts = {
        "client-certificate": issued.cert_chain_pems[0].bytes(),
        "client-key": issued.private_key_pem.bytes(),
    }
    user = {f"{inside}-data": base64.b64encode(parts.pop(inside)).decode()}
    [(other, pem)] = parts.items()
    (folder / "pem").write_bytes(pem)
    config = document("a", current="a", user={**user, other: "pem"})
    (folder / "config").write_text(json.dumps(config))
    assert by_kubeconfig(str(folder / "config"), os.environ).files == (folder / "pem",)
