"""What a service's accounts may do in the cluster, as data: RBAC's rules and the
ValidatingAdmissionPolicies that narrow them down to fields are made of it (``chart_rights.py``).

In every text ``{helper}`` stands for what the chart's named template of that name says, and
``{namespace}`` for the release's namespace.

A path of a field is ``spec.replicas``; ``status.capacity[cpu]`` is one key of a map,
``metadata.annotations[example.com/*]`` those that begin so, and ``!metadata.annotations[…]`` one
that is left out of these. ``metadata.finalizers[x]`` is a finalizer that may come and go,
``spec.schedulingGates[-x]`` a gate that may go (``[-*]``: any may), and
``webhooks[*].clientConfig.caBundle`` a field of every entry of a list of named ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Constraint:
    """``cel`` holds of ``o``; ``sentence`` says so to whoever is refused."""

    cel: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Right:
    """Verbs on one resource (``nodes/status`` is one), or on several that are only read.

    Of what is updated everything but ``fields`` stays as it was. What is created has ``fields``
    and a name, and nothing else; ``*`` is all of it. ``holds`` is true of the object before a
    request and of the one after it; ``gives`` of the one after it.

    Attributes:
        namespace: the only one that it is for; without one it is for all.
        names: of the only objects that it is for.
        when: a helper of the chart that says nothing where there is no such right; ``!`` turns it
            round.
        policy: the last part of the policy's name; else account and resource.
        each: in place of group and resource, a helper of the chart that says a JSON list of objects
            with both: there is such a right on each.
    """

    resource: str | tuple[str, ...] = ""
    verbs: str
    group: str | tuple[str, ...] = ""
    fields: tuple[str, ...] = ()
    holds: tuple[Constraint, ...] = ()
    gives: tuple[Constraint, ...] = ()
    namespace: str = ""
    names: tuple[str, ...] = ()
    when: str = ""
    policy: str = ""
    each: str = ""

    @property
    def what(self) -> str:
        """What it is for, in words."""
        return self.each or (
            self.resource if isinstance(self.resource, str) else ", ".join(self.resource)
        )


@dataclass(frozen=True, kw_only=True)
class Account:
    """A ServiceAccount and its rights. ``component``: the label of its pods; ``name``: of the
    account, in place of the chart's name and the component.
    """

    component: str
    rights: tuple[Right, ...]
    name: str = ""
    when: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """All accounts of a service. ``when``: a helper that says nothing where the chart is off."""

    name: str
    accounts: tuple[Account, ...]
    when: str = ""


OWN_NODE: Final = "request.userInfo.?extra['authentication.kubernetes.io/node-name'].orValue([])"
"""CEL: the names of the node that the token's pod is on; empty where a token is of no pod."""

EVENT: Final = (
    *("involvedObject", "type", "reason", "message", "source", "reportingComponent"),
    *("firstTimestamp", "lastTimestamp", "count"),
)
"""The fields of an Event as :mod:`.events` makes it; the last two of a new one are empty."""


def speaker(component: str) -> Right:
    """Events in ``component``'s name alone."""
    return Right(
        resource="events",
        verbs="create",
        fields=(*EVENT, "eventTime", "reportingInstance"),
        gives=(
            Constraint(
                f"o.?reportingComponent.orValue('') == '{component}'"
                f" && o.?source.?component.orValue('') == '{component}'",
                f"reportingComponent and source.component are {component}",
            ),
        ),
    )


def leader(lease: str) -> Right:
    """The Lease by which replicas choose who leads: read, written and made again, in the
    release's namespace.
    """
    return Right(
        resource="leases",
        group="coordination.k8s.io",
        verbs="get update create",
        namespace="{namespace}",
        names=(lease,),
        fields=("spec",),
    )


def certificate_account(secret: str, *kinds: str, configuration: str = "{name}") -> Account:
    """Who keeps a webhook's certificate: the CA bundle of its configurations of these kinds, and
    one Secret of one type (another type would make it a ServiceAccount's token).
    """
    typed = Constraint(
        "o.?type.orValue('') == 'kubernetes.io/tls'", "its type is kubernetes.io/tls"
    )
    return Account(
        component="certs",
        when="selfManaged",
        rights=(
            *(
                Right(
                    resource=kind,
                    group="admissionregistration.k8s.io",
                    verbs="get patch",
                    names=(configuration,),
                    fields=("webhooks[*].clientConfig.caBundle",),
                )
                for kind in kinds
            ),
            Right(
                resource="secrets",
                verbs="get update create",
                namespace="{namespace}",
                names=(secret,),
                fields=("data", "type", "metadata.labels", "metadata.ownerReferences"),
                holds=(typed,),
            ),
        ),
    )
