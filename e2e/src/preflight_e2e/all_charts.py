"""Everything of this repository installed on a real API server that can be attacked.

All charts with every part on, rendered by the umbrella: definitions, accounts, roles, policies and
webhooks, whose programs run with the arguments of their Deployments.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

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

from .attack_requests import ATTACKS, HOME, MEDIA, Attacked, merged, read
from .filled import FilledCluster
from .installed_release import until

PAGE: Final = ATTACKS.parents[1] / "docs" / "threat-model.md"
ATTEMPTS: Final = 3
"""To start a program: somebody else may take its port before it listens."""
PORTS: Final = {
    "preflight-injector": ("preflight-webhook", "--port", "--plain-port"),
    "preflight-gpu-scheduler-webhook": ("preflight-gpu-scheduler", "--admission-port", "--port"),
    "preflight-appwrapper-webhook": ("preflight-appwrapper", "--tls-port", "--port"),
    "preflight-mnnvl-webhook": ("preflight-mnnvl", "--admission-port", "--port"),
}
"""By Deployment: the program, and its options for the two ports of a webhook."""
PROCESSES: Final = PORTS | {
    "preflight-gang": ("preflight-gang", "--port"),
    "preflight-appwrapper-controller": ("preflight-appwrapper", "--port"),
    "preflight-appwrapper-labeler": ("preflight-appwrapper", "--port"),
    "preflight-gpu-scheduler-controller": ("preflight-gpu-scheduler", "--port"),
    "preflight-gpu-scheduler-scheduler": ("preflight-gpu-scheduler", "--port", "--extender-port"),
    "preflight-computedomain-controller": ("compute-domain-controller", "--port"),
    "preflight-mnnvl-controller": ("preflight-mnnvl", "--port"),
}
"""By Deployment: the program, and its options for all of its ports."""
ON_NODES: Final = {
    "preflight-gpu-scheduler-agent": ("preflight-gpu-scheduler", "--port"),
    "preflight-computedomain-kubelet-plugin": ("compute-domain-kubelet-plugin", "--port"),
}
"""The same by DaemonSet."""


def missing() -> list[str]:
    """The webhooks' programs that are not beside this interpreter."""
    return [name for name, *_ in PORTS.values() if not (_bin() / name).exists()]


def _bin() -> Path:
    return Path(sys.executable).parent


@contextmanager
def attacked(
    home: Path,
    assets: Path,
    *,
    certified: bool = False,
    values: Object | None = None,
    more: Sequence[str] = (),
) -> Iterator[Attacked]:
    """Everything installed, and what `e2e/attacks/world.toml` has made; ``certified``: webhooks
    that serve API servers with a client certificate alone; ``values``: beyond the world's own;
    ``more``: further arguments of kube-apiserver.
    """
    with ExitStack() as stack:
        options = ["--enable-admission-plugins=NodeRestriction", *more]
        if certified:
            options.append(f"--admission-control-config-file={_shown(home)}")
        server = ApiServer(home, assets, authorization="Node,RBAC", more=options)
        cluster = Attacked(stack.enter_context(server))
        world = read(ATTACKS / "world.toml")
        world["values"] = merged(world["values"], values or {})
        cluster.objects = world["object"]
        _install(cluster, stack, home, world)
        for each in world["made"]:
            _make(cluster, each)
        yield cluster


def _shown(home: Path) -> Path:
    """kube-apiserver's admission configuration, by which it shows webhooks a certificate: the
    manual's lines, with places of this machine.
    """
    authority = trustme.CA()
    (home / "client-ca.crt").write_bytes(authority.cert_pem.bytes())
    issued = authority.issue_cert(common_name="kube-apiserver")
    (home / "webhooks.crt").write_bytes(issued.cert_chain_pems[0].bytes())
    (home / "webhooks.key").write_bytes(issued.private_key_pem.bytes())
    admission, kubeconfig = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    places = {"/etc/kubernetes/pki/": f"{home}/", "/etc/kubernetes/": f"{home}/"}
    places["*.preflight.svc"] = "*"  # for the webhooks are asked by an address
    for there, here in places.items():
        admission, kubeconfig = admission.replace(there, here), kubeconfig.replace(there, here)
    (home / "admission.yaml").write_text(admission)
    (home / "webhooks.kubeconfig").write_text(kubeconfig)
    return home / "admission.yaml"


def _make(cluster: Attacked, each: Object) -> None:
    """An object that is there, and its status."""
    body = merged(cluster.objects[each["object"]], each.get("change", {}))
    where = cluster.path(each["at"])
    created = cluster.ask(
        "POST", where, cluster.about(each["at"]) | body, **cluster.who(each.get("by", ""))
    )
    assert created.status == 201, (each, created)
    if status := each.get("status"):
        path = f"{where}/{created.body['metadata']['name']}/status"
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
    cluster.rendered = objects
    for name, labels in world["namespaces"].items():
        if name != "kube-system":
            body = {"metadata": {"name": name, "labels": labels}}
            assert cluster.ask("POST", "/api/v1/namespaces", body).status in {201, 409}
    plurals = {about["kind"]: name for name, (_, about) in cluster.kinds.items() if "/" not in name}
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
    started = {name: _serve(cluster, stack, home, name, objects, authority) for name in PORTS}
    for name in PORTS:
        for _ in range(ATTEMPTS):
            process, plain = started[name]
            until(
                lambda: process.poll() is not None or _ready(plain),  # noqa: B023
                f"{name} is ready",
            )
            if process.poll() is None:
                break
            started[name] = _serve(cluster, stack, home, name, objects, authority)
        else:
            raise AssertionError(f"{name} does not start: {(home / name / 'log').read_text()}")
    for o in hooks:
        for hook in o["webhooks"]:
            service = hook["clientConfig"].pop("service")
            name = service["name"]
            port = cluster.webhooks.get(name) or cluster.webhooks[f"{name}-webhook"]
            hook["clientConfig"] |= {
                "url": f"https://127.0.0.1:{port}{service['path']}",
                "caBundle": bundle,
            }
        answer = cluster.ask("POST", cluster.path(plurals[o["kind"]]), o)
        assert answer.status == 201, answer
    _in_force(cluster)


def _serve(
    cluster: Attacked,
    stack: ExitStack,
    home: Path,
    name: str,
    objects: list[Object],
    authority: trustme.CA,
) -> tuple[subprocess.Popen[bytes], int]:
    """The program of a webhook on ports that are free, and its plain one."""
    program, port_option, plain_option = PORTS[name]
    port, plain = free_port(), free_port()
    [o] = [o for o in objects if o["kind"] == "Deployment" and o["metadata"]["name"] == name]
    more = [port_option, str(port), plain_option, str(plain), "--host", "127.0.0.1"]
    shutil.rmtree(home / name, ignore_errors=True)
    cluster.webhooks[name] = port
    process = _start(cluster, stack, home / name, o, objects, program, more, authority)
    cluster.memory[name] = process.pid, _limit(o)
    return process, plain


def _limit(deployment: Object) -> int:
    """MiB, of the container with a limit."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    [limit] = [m for c in containers if (m := c["resources"]["limits"].get("memory"))]
    return int(limit.removesuffix("Mi"))


def started(
    cluster: Attacked,
    stack: ExitStack,
    folder: Path,
    name: str,
    filled: FilledCluster | None = None,
    around: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """A process of a Deployment, or of a DaemonSet on node n1, and its limit in MiB; ``filled``: in
    this cluster; ``around``: what its environment has beside the chart's.
    """
    program, *options = (PROCESSES | ON_NODES)[name]
    more = ["--host", "127.0.0.1"]
    for option in options:
        more += [option, str(free_port())]
    [o] = [
        o
        for o in cluster.rendered
        if o["metadata"]["name"] == name and o["kind"] in {"Deployment", "DaemonSet"}
    ]
    process = _start(
        cluster, stack, folder, o, cluster.rendered, program, more, trustme.CA(), filled, around
    )
    return process, _limit(o)


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
        where = cluster.kinds[kind][0]
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
    filled: FilledCluster | None = None,
    around: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A Deployment's or a DaemonSet's program, with its own arguments, configuration and account;
    in a cluster that is ``filled``, where there is one; ``around``: what its environment has more.
    """
    folder.mkdir()
    pod = deployment["spec"]["template"]["spec"]
    [container] = [c for c in pod["containers"] if c["name"] != "kube-scheduler"]
    arguments = [each.replace("=/", f"={folder}/") for each in container.get("args", ())]
    kept = {v["name"]: v for v in pod.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
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
        if "hostPath" in kept[mount["name"]]:
            continue
        issued = authority.issue_cert("127.0.0.1")
        (place / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (place / "tls.crt").write_bytes(b"".join(c.bytes() for c in issued.cert_chain_pems))
        (place / "ca.crt").write_bytes(authority.cert_pem.bytes())
        (place / "mark.key").write_bytes(b"k" * 64)
    node = "n1" if deployment["kind"] == "DaemonSet" else ""
    token = cluster.server.token_of(HOME, pod["serviceAccountName"], node)
    server = filled or cluster.server
    settings = {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}
    environment = settings | {
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig", token)),
        "POD_NAME": deployment["metadata"]["name"],
        "POD_NAMESPACE": HOME,
        "NODE_NAME": "n1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(_bin() / program), *container.get("command", ())[1:], *arguments, *more],
            env={**os.environ, **environment, **(around or {})},
            stdout=log,
            stderr=log,
        )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _ready(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
        return bool(answer.status == 200)
    return False


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

    until(refused, "policies in force")
    until(injected, "webhooks called")
