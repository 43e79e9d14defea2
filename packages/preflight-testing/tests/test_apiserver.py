"""The control plane of one's own does what other packages' tests take for granted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from preflight_testing.apiserver import ASSETS, ApiServer, assets

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RULES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"


def test_under_rbac_an_account_may_do_what_it_was_given_and_no_more(tmp_path: Path) -> None:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path, folder, authorization="RBAC") as server:
        server.call("POST", ACCOUNTS, {"metadata": {"name": "reader"}})
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
        server.call("POST", f"{RULES}/roles", {"metadata": {"name": "reader"}, "rules": [rule]})
        binding = {
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}],
        }
        server.call("POST", f"{RULES}/rolebindings", binding)
        kubeconfig = server.kubeconfig(
            tmp_path / "kubeconfig", server.token_of("default", "reader")
        )
        with config.new_client_from_config(str(kubeconfig)) as reader:  # type: ignore[no-untyped-call]
            api: Any = client.CoreV1Api(reader)
            assert api.list_namespaced_pod("default").items == []
            with pytest.raises(client.ApiException, match="Forbidden"):
                api.list_namespaced_secret("default")
