"""Which pods should carry checks and do not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from preflight_gang.core.unchecked import (
    AuditedPod,
    DeviceClass,
    GpuClaims,
    Namespace,
    Origin,
    ResourceClaim,
    gives_gpus,
    opted_in,
    resource_names,
    why_unchecked,
)
from preflight_proto import names
from preflight_proto.admitted import Admitted, SeenClaim, encode_admitted

GPU = ("nvidia.com/gpu",)
ASKS = [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]


def reason(
    phase: str = "Running",
    *,
    containers: list[dict[str, Any]] = ASKS,
    init: list[dict[str, Any]] | None = None,
    **metadata: Any,
) -> str | None:
    spec = {"containers": containers, "initContainers": init}
    pod = {"metadata": {"name": "it", **metadata}, "spec": spec, "status": {"phase": phase}}
    return why_unchecked(msgspec.convert(pod, AuditedPod), GPU)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (reason("Running"), "running"),
        (reason("Pending"), "not-started"),
        (reason(annotations={"kubernetes.io/config.mirror": "x"}), "static-pod"),
        (reason(annotations={names.CHECKS_ANNOTATION: " "}), "asked-for-none"),
        (reason(annotations={names.CHECKS_ANNOTATION: "dcgm-diag"}), "running"),
        (reason("Succeeded"), None),
        (reason("Failed"), None),
        (reason(deletionTimestamp="2026-11-21T08:00:00Z"), None),
        (reason(containers=[{}]), None),
        (reason(containers=[{"resources": {"limits": {"nvidia.com/gpu": "0"}}}]), None),
        (reason(containers=[{"resources": {"limits": {"amd.com/gpu": "1"}}}]), None),
        (reason(containers=[{}, {"resources": {"requests": {"nvidia.com/gpu": "1"}}}]), "running"),
    ],
)
def test_a_gpu_pod_without_checks_has_a_reason_and_no_other_pod_has(
    found: str | None, why: str | None
) -> None:
    assert found == why


def test_a_pod_to_which_no_check_applies_is_not_unchecked_and_other_marks_mean_nothing() -> None:
    assert reason(labels={names.CHECKED_LABEL: names.NO_CHECK_APPLIES}) is None
    check = [{"name": "preflight-dcgm-diag"}]
    assert reason(labels={names.CHECKED_LABEL: names.CHECKED}, init=check) is None
    assert (
        reason(labels={names.CHECKED_LABEL: names.CHECKED}, init=[{"name": "setup"}]) == "running"
    )
    for forged in ("", "yes", "None", "TRUE", "false"):
        assert reason(labels={names.CHECKED_LABEL: forged}) == "running"


def asks(resource: str, amount: str = "1") -> list[dict[str, Any]]:
    return [{"resources": {"limits": {resource: amount}}}]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (reason(containers=asks("nvidia.com/pgpu")), "unknown-resource"),
        (reason("Pending", containers=asks("nvidia.com/gpu.shared")), "unknown-resource"),
        (reason(containers=[{}], init=asks("nvidia.com/GH100_H100")), "unknown-resource"),
        (reason(containers=asks("nvidia.com/pgpu", "0")), None),
        (reason(containers=[*asks("nvidia.com/pgpu"), *ASKS]), "running"),
        (
            reason(containers=asks("nvidia.com/pgpu"), annotations={names.CHECKS_ANNOTATION: ""}),
            "asked-for-none",
        ),
        (
            reason(
                containers=asks("nvidia.com/mig-1g.10gb"),
                labels={names.CHECKED_LABEL: names.NO_CHECK_APPLIES},
            ),
            None,
        ),
        *[
            (reason(containers=asks(f"nvidia.com/{one}")), None)
            for one in ("hostdev", "mlnxnics", "sriov_rdma_vf", "rdma_shared_device_a", "roce_gdr")
        ],
    ],
)
def test_what_may_be_a_gpu_and_is_not_known_is_counted_and_what_is_known_to_be_none_is_not(
    found: str | None, why: str | None
) -> None:
    assert found == why


def test_what_the_operator_says_is_no_gpu_is_not_counted() -> None:
    pod = {"metadata": {"name": "it"}, "spec": {"containers": asks("nvidia.com/dpu")}}
    audited = msgspec.convert(pod, AuditedPod)
    assert why_unchecked(audited, GPU) == "unknown-resource"
    assert why_unchecked(audited, GPU, others=("nvidia.com/d*",)) is None


def test_a_pod_that_names_a_gpu_claim_is_a_gpu_pod_where_such_claims_are_looked_for() -> None:
    named = {"name": "it", "annotations": {names.GPU_CLAIM_ANNOTATION: "two"}}
    pod = msgspec.convert({"metadata": named, "spec": {"containers": [{}]}}, AuditedPod)
    assert why_unchecked(pod, GPU, gpu_claims=True) == "not-started"
    assert why_unchecked(pod, GPU) is None
    other = msgspec.convert({"metadata": {"name": "it"}, "spec": {"containers": [{}]}}, AuditedPod)
    assert why_unchecked(other, GPU, gpu_claims=True) is None


def test_a_pod_whose_init_container_alone_asks_for_gpus_is_a_gpu_pod() -> None:
    pod = {"metadata": {"name": "it"}, "spec": {"containers": [{}], "initContainers": ASKS}}
    assert why_unchecked(msgspec.convert(pod, AuditedPod), GPU) == "not-started"


@pytest.mark.parametrize(
    ("name", "label", "expected"),
    [
        ("training", "enabled", True),
        ("training", None, False),
        ("listed", None, True),
        ("listed", "disabled", False),
        ("training", "yes", False),
        ("kube-system", "enabled", False),
    ],
)
def test_a_namespace_is_opted_in_by_label_or_by_name_unless_excluded(
    name: str, label: str | None, expected: bool
) -> None:
    labels = {names.NAMESPACE_LABEL: label} if label else {}
    namespace = msgspec.convert({"metadata": {"name": name, "labels": labels}}, Namespace)
    assert opted_in(namespace, ["listed"], ["kube-system"]) is expected


# --- dynamic resource allocation

GPUS = ("gpu.nvidia.com",)


def claim(*requests: dict[str, Any], allocated: list[str] | None = None) -> ResourceClaim:
    made: dict[str, Any] = {
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": list(requests)}},
    }
    if allocated is not None:
        made["status"] = {
            "allocation": {"devices": {"results": [{"request": one} for one in allocated]}}
        }
    return msgspec.convert(made, ResourceClaim)


def of(kind: str, name: str = "r") -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": kind}}


EITHER = {
    "name": "r",
    "firstAvailable": [
        {"name": "large", "deviceClassName": "gpu.nvidia.com"},
        {"name": "any", "deviceClassName": "other"},
    ],
}


@pytest.mark.parametrize(
    ("made", "gives"),
    [
        (claim(of("gpu.nvidia.com")), True),
        (claim({"name": "r", "deviceClassName": "gpu.nvidia.com"}), True),  # v1beta1
        (claim(of("nic.example.com")), False),
        (claim(of("nic.example.com"), of("gpu.nvidia.com", "s")), True),
        (
            claim(
                {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}}
            ),
            False,
        ),
        (claim(EITHER), True),
        (claim(EITHER, allocated=["r/large"]), True),
        (claim(EITHER, allocated=["r/any"]), False),
        (claim(of("gpu.nvidia.com"), allocated=["r"]), True),
        (claim(), False),
    ],
)
def test_a_claim_gives_gpus_where_it_has_some_or_may_get_some(
    made: ResourceClaim, gives: bool
) -> None:
    assert gives_gpus(made, GPUS) is gives


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {},
        {"devices": None},
        {"devices": {"requests": None}},
        {"devices": {"requests": [{"exactly": None}]}},
    ],
)
def test_a_claim_with_nothing_in_it_gives_nothing(spec: Any) -> None:
    assert not gives_gpus(
        msgspec.convert({"metadata": {"name": "c"}, "spec": spec}, ResourceClaim), GPUS
    )
    assert not gives_gpus(
        msgspec.convert({"metadata": {"name": "c"}, "spec": {"spec": spec}}, ResourceClaim),
        GPUS,
    )


def by_claims(*entries: dict[str, Any], made: dict[str, str] | None = None) -> AuditedPod:
    statuses = [{"name": name, "resourceClaimName": claim} for name, claim in (made or {}).items()]
    body = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{}], "resourceClaims": list(entries)},
        "status": {"phase": "Running", "resourceClaimStatuses": statuses},
    }
    return msgspec.convert(body, AuditedPod)


def origin(name: str, uid: str, second: int = 0) -> Origin:
    return Origin(
        name=name, uid=uid, creation_timestamp=datetime(2026, 11, 21, 8, 0, second, tzinfo=UTC)
    )


KNOWN = GpuClaims(
    claims={"gpus", "nics"},
    gpu_claims={"gpus": origin("gpus", "u-now", 20)},
    gpu_templates={"gpu-template": origin("gpu-template", "t-now", 10)},
)


@pytest.mark.parametrize(
    ("unchecked", "reason"),
    [
        (by_claims({"name": "a", "resourceClaimName": "gpus"}), "running"),
        (by_claims({"name": "a", "resourceClaimName": "nics"}), None),
        (
            by_claims(
                {"name": "n", "resourceClaimName": "nics"},
                {"name": "a", "resourceClaimName": "gpus"},
            ),
            "running",
        ),
        (by_claims({"name": "a", "resourceClaimTemplateName": "gpu-template"}), "running"),
        (
            by_claims(
                {"name": "a", "resourceClaimTemplateName": "gpu-template"}, made={"a": "gpus"}
            ),
            "running",
        ),
        # What its template asked for when the claim was made counts no more: the claim says what it
        # has.
        (
            by_claims(
                {"name": "a", "resourceClaimTemplateName": "gpu-template"}, made={"a": "nics"}
            ),
            None,
        ),
        (
            by_claims({"name": "a", "resourceClaimTemplateName": "other"}, made={"a": "gpus"}),
            "running",
        ),
        (by_claims({"name": "a", "resourceClaimName": "gone"}), None),
        (by_claims({"name": "a"}), None),
    ],
)
def test_a_pod_has_gpus_by_what_its_claims_give_now(
    unchecked: AuditedPod, reason: str | None
) -> None:
    assert why_unchecked(unchecked, (), KNOWN) == reason


def test_extended_resources_that_stand_for_a_gpu_class_are_gpus() -> None:
    classes = [
        {
            "metadata": {"name": "gpu.nvidia.com"},
            "spec": {"extendedResourceName": "example.com/gpu"},
        },
        {
            "metadata": {"name": "nic.example.com"},
            "spec": {"extendedResourceName": "example.com/nic"},
        },
        {"metadata": {"name": "bare"}, "spec": None},
    ]
    assert resource_names(
        ["nvidia.com/gpu"], GPUS, msgspec.convert(classes, list[DeviceClass])
    ) == {
        "nvidia.com/gpu",
        "deviceclass.resource.kubernetes.io/gpu.nvidia.com",
        "example.com/gpu",
    }


@pytest.mark.parametrize(
    "spec",
    [
        {
            "containers": [
                {"resources": {"limits": {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "1"}}}
            ]
        },
        {
            "containers": [
                {"resources": {"limits": {"nvidia.com/gpu": "8", "nvidia.com/gpu.shared": "1"}}}
            ]
        },
        {
            "initContainers": [
                {
                    "name": "istio-proxy",
                    "restartPolicy": "Always",
                    "resources": {"limits": {"nvidia.com/gpu": "8"}},
                }
            ]
        },
        {"containers": [{"resources": {"requests": {"nvidia.com/gpu": 1}}}]},
        {"containers": [{}], "resources": {"limits": {"nvidia.com/gpu": "1"}}},
    ],
    ids=["mig beside whole", "shared beside whole", "sidecar", "number", "pod level"],
)
def test_whole_gpus_count_whatever_is_beside_them_and_whoever_has_them(
    spec: dict[str, Any],
) -> None:
    made = msgspec.convert(
        {"metadata": {"name": "p"}, "spec": {"containers": None, **spec}}, AuditedPod
    )
    assert why_unchecked(made, ["nvidia.com/gpu"]) == "not-started"


# --- claims that are others than at admission

BY_NAME = {"name": "a", "resourceClaimName": "gpus"}
BY_TEMPLATE = {"name": "a", "resourceClaimTemplateName": "gpu-template"}


def account(
    kind: Literal["ResourceClaim", "ResourceClaimTemplate", ""], uid: str, *, gpu: bool = True
) -> str:
    return encode_admitted(
        Admitted(v=1, claims={"a": SeenClaim(kind=kind, name="it", uid=uid, gpu=gpu)})
    )


CHECKS = msgspec.convert(
    {"metadata": {"name": "p"}, "spec": {"initContainers": [{"name": "preflight-dcgm-diag"}]}},
    AuditedPod,
).spec.init_containers


def admitted(
    text: str | None,
    entry: dict[str, Any] = BY_NAME,
    *,
    made: str = "",
    checked: str | None = names.CHECKED,
    known: GpuClaims = KNOWN,
) -> str | None:
    """Why a pod is counted of which admission wrote down ``text``."""
    pod = by_claims(entry, made={"a": made} if made else {})
    pod.metadata.labels = {} if checked is None else {names.CHECKED_LABEL: checked}
    if checked == names.CHECKED:
        pod.spec = msgspec.structs.replace(pod.spec, init_containers=CHECKS)
    pod.metadata.annotations = {names.CLAIMS_ANNOTATION: text} if text is not None else {}
    return why_unchecked(pod, (), known)


@pytest.mark.parametrize("checked", [names.CHECKED, names.NO_CHECK_APPLIES, None])
@pytest.mark.parametrize(
    ("text", "entry", "made"),
    [
        pytest.param(account("ResourceClaim", "u-then"), BY_NAME, "", id="anew"),
        pytest.param(account("ResourceClaim", "u-now", gpu=False), BY_NAME, "", id="no GPUs then"),
        pytest.param(account("ResourceClaim", "", gpu=False), BY_NAME, "", id="absent then"),
        pytest.param(
            account("ResourceClaimTemplate", "t-then", gpu=False),
            BY_TEMPLATE,
            "gpus",
            id="template",
        ),
        pytest.param(
            account("ResourceClaimTemplate", "t-then", gpu=False), BY_TEMPLATE, "", id="not made"
        ),
        pytest.param(
            account("ResourceClaimTemplate", "t-then"),
            BY_TEMPLATE,
            "",
            id="template anew, not made",
        ),
        # The template is older than the claim, so that is made of it.
        pytest.param(
            account("ResourceClaimTemplate", "t-then"), BY_TEMPLATE, "gpus", id="made of it"
        ),
        pytest.param(encode_admitted(Admitted(v=1, claims={})), BY_NAME, "", id="unnamed"),
    ],
)
def test_a_pod_whose_gpus_admission_did_not_decide_about_has_a_reason_of_its_own_checked_or_not(
    text: str, entry: dict[str, Any], made: str, checked: str | None
) -> None:
    assert admitted(text, entry, made=made, checked=checked) == "claim-differs"


LATER = GpuClaims(
    KNOWN.claims, KNOWN.gpu_claims, {"gpu-template": origin("gpu-template", "t-now", 30)}
)
NO_GPUS = GpuClaims(claims={"gpus"})
TEMPLATE_NOW = account("ResourceClaimTemplate", "t-now")
TEMPLATE_THEN = account("ResourceClaimTemplate", "t-then")


@pytest.mark.parametrize(
    ("text", "entry", "made", "known"),
    [
        pytest.param(account("ResourceClaim", "u-now"), BY_NAME, "", KNOWN, id="same"),
        pytest.param(account("ResourceClaim", ""), BY_NAME, "", KNOWN, id="inject"),
        pytest.param(account("ResourceClaim", "u-then"), BY_NAME, "", NO_GPUS, id="no GPUs now"),
        pytest.param(
            account("ResourceClaim", "u-then", gpu=False), BY_NAME, "", NO_GPUS, id="never GPUs"
        ),
        pytest.param(TEMPLATE_NOW, BY_TEMPLATE, "gpus", KNOWN, id="same template"),
        pytest.param(TEMPLATE_NOW, BY_TEMPLATE, "", KNOWN, id="not made"),
        pytest.param(TEMPLATE_THEN, BY_TEMPLATE, "gpus", LATER, id="template anew later"),
        pytest.param(
            TEMPLATE_THEN,
            BY_TEMPLATE,
            "gpus",
            GpuClaims({"gpus"}, KNOWN.gpu_claims),
            id="template gone",
        ),
    ],
)
def test_a_checked_pod_that_has_what_was_decided_about_is_not_counted(
    text: str, entry: dict[str, Any], made: str, known: GpuClaims
) -> None:
    assert admitted(text, entry, made=made, known=known) is None


@pytest.mark.parametrize(
    "text", [None, "", "{", '{"v":9,"claims":{}}', "[" * 100_000, "x" * 300_000]
)
def test_without_a_readable_account_a_checked_pod_is_not_counted_and_another_is_as_ever(
    text: str | None,
) -> None:
    assert admitted(text) is None
    assert admitted(text, checked=None) == "running"


def test_a_pod_that_has_ended_or_asked_for_none_is_not_told_of_its_claims() -> None:
    pod = by_claims(BY_NAME)
    pod.metadata.annotations = {
        names.CLAIMS_ANNOTATION: account("ResourceClaim", "then"),
        names.CHECKS_ANNOTATION: "",
    }
    assert why_unchecked(pod, (), KNOWN) == "asked-for-none"
    pod.status.phase = "Succeeded"
    assert why_unchecked(pod, (), KNOWN) is None
