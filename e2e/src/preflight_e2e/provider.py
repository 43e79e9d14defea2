"""What docs/revalidation ships, used as NVSentinel's validation-controller uses it: its template
rendered for a node, its account created, and the Job followed to its condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes import client, utils

from .lab import Lab, until

FILES: Final = Path(__file__).resolve().parents[3] / "docs" / "revalidation"
HOME: Final = "nvsentinel"
PODS: Final = "gpu-validation"
INJECTOR: Final = "preflight"
ACCOUNT: Final = "preflight-revalidation"
REPLACES: Final = f"{ACCOUNT}-replaced"
Json = dict[str, Any]


def rights() -> list[Json]:
    """The objects of rights.yaml."""
    return list(yaml.safe_load_all((FILES / "rights.yaml").read_text()))


def rendered(request: str, node: str, image: str) -> Json:
    """The provider's object for one node: the few actions of Go's templates that ours has."""
    config = yaml.safe_load((FILES / "provider.yaml").read_text())["lifecycle-manager"]["config"]
    provider = config["providers"]["preflight"]
    values: dict[str, str] = {
        ".ValidationRequestName": request,
        ".TestGroupName": "preflight-group-1",
        ".Namespace": HOME,
        ".TimeoutSeconds": str(provider["timeoutSeconds"]),
        ".Image": image,
        "quote (index .Nodes 0).NodeName": f'"{node}"',
    }
    text = config["templates"][provider["templateFile"]]
    document: Json = yaml.safe_load(re.sub(r"{{(.*?)}}", lambda action: values[action[1]], text))
    return document


class ValidationProvider:
    """The account and the namespaces that rights.yaml has; a context that leaves nothing."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.batch: Any = client.BatchV1Api()
        self.roles: Any = client.RbacAuthorizationV1Api()
        self._count = 0

    def __enter__(self) -> ValidationProvider:
        self.lab.api.create_namespace({"metadata": {"name": HOME}})
        for body in rights():
            utils.create_from_dict(client.ApiClient(), body)  # type: ignore[no-untyped-call]
        self.lab.reached(PODS)
        return self

    def __exit__(self, *_: object) -> None:
        remove: list[Callable[[], Any]] = [
            lambda: self.roles.delete_cluster_role_binding(ACCOUNT),
            lambda: self.roles.delete_cluster_role(ACCOUNT),
            lambda: self.roles.delete_namespaced_role_binding(ACCOUNT, INJECTOR),
            lambda: self.roles.delete_namespaced_role(ACCOUNT, INJECTOR),
            lambda: self.roles.delete_namespaced_role_binding(REPLACES, INJECTOR),
            lambda: self.roles.delete_namespaced_role(REPLACES, INJECTOR),
            lambda: self.lab.remove_namespace(PODS),
            lambda: self.lab.remove_namespace(HOME),
        ]
        for callback in remove:
            with suppress(client.ApiException):
                callback()

    def may_replace(self) -> None:
        """Give the account what --replaced needs."""
        role = {"metadata": {"name": REPLACES}}
        rule = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]}
        self.roles.create_namespaced_role(INJECTOR, {**role, "rules": [rule]})
        refers = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": REPLACES}
        account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
        binding = {**role, "roleRef": refers, "subjects": [account]}
        self.roles.create_namespaced_role_binding(INJECTOR, binding)

    def validated(self, node: str, *options: str) -> tuple[bool, str]:
        """(whether the provider's Job for ``node`` has succeeded, what it said). ``options``: more
        of the command's.
        """
        self._count += 1
        body = rendered(f"request-{self._count}", node, "preflight-webhook:dev")
        body["spec"]["template"]["spec"]["containers"][0]["args"] += options
        name = body["metadata"]["name"]
        self.batch.create_namespaced_job(HOME, body)

        def ended() -> list[str]:
            conditions = self.batch.read_namespaced_job_status(name, HOME).status.conditions or []
            return [
                c.type
                for c in conditions
                if c.type in {"Complete", "Failed"} and c.status == "True"
            ]

        condition = until(f"the validation of {node}", ended, 180)
        [pod] = self.lab.api.list_namespaced_pod(
            HOME, label_selector=f"batch.kubernetes.io/job-name={name}"
        ).items
        return condition == ["Complete"], self.lab.log(HOME, pod.metadata.name, "revalidate")
