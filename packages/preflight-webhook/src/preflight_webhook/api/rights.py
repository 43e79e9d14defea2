"""Rights of the webhook and of who keeps its certificate, down to the field: the chart's roles and
policies are made of it. Pure.

The webhook writes nothing.
"""

from __future__ import annotations

from typing import Final

from preflight_kube.api.rights import Account, Chart, Right, certificate_account
from preflight_proto.policy import GROUP, PLURAL

RIGHTS: Final = Chart(
    name="preflight-injector",
    accounts=(
        Account(
            component="webhook",
            name="{name}",
            rights=(
                # What namespaces have of their own.
                Right(
                    resource=PLURAL,
                    group=GROUP,
                    verbs="list watch",
                    when="followsConfigs",
                ),
                # Those that pods name, where device classes are configured.
                Right(
                    resource=("resourceclaims", "resourceclaimtemplates"),
                    group="resource.k8s.io",
                    verbs="get",
                    when="asksForClaims",
                ),
            ),
        ),
        certificate_account("{secret}", "mutatingwebhookconfigurations"),
    ),
)
