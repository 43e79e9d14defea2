"""Every row of `e2e/attacks`: one request of one attacker, against a real API server with all
charts installed, and their webhooks.
"""

from __future__ import annotations

import copy
import http.client
import json
import random
import ssl
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from preflight_e2e.attacked import Attack, Attacked, merged, rows
from preflight_e2e.bench.load import resident_mb
from preflight_e2e.everything import attacked, missing
from preflight_testing.apiserver import ASSETS, assets
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(400)
ROWS = rows()


def needed() -> Path:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    if names := missing():
        pytest.skip(f"{', '.join(names)}: not installed beside this interpreter; nox -s attacks")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(tmp_path_factory.mktemp("attacked"), needed()) as found:
        yield found


@pytest.mark.parametrize("attack", ROWS, ids=[row.row for row in ROWS])
def test_an_attack_is_refused_or_harmless_as_its_row_says(
    attack: Attack, cluster: Attacked
) -> None:
    wrong = cluster.judged(attack, cluster.does(attack))
    if attack.open:
        assert wrong, "it is closed now: take `open` out of the row, and the page's words"
    else:
        assert not wrong, f"{attack.who}: {attack.does}: {wrong}"


def test_a_mark_that_anybody_on_the_network_was_given_lets_nobody_wrap_what_he_may_not_create(
    cluster: Attacked,
) -> None:
    review = copy.deepcopy(cluster.objects["review"])
    review["request"]["userInfo"] = {"username": "ceo", "groups": ["system:masters"]}
    path = "/mutate-workload-codeflare-dev-v1beta2-appwrapper"
    patch = cluster.call("preflight-appwrapper-webhook", path, review).body["patch"]
    [key] = {key for op in patch if "annotations" in op["path"] for key in op["value"]}
    [mark] = [op["value"][key] for op in patch if "annotations" in op["path"]]
    wrapper = review["request"]["object"]
    wrapper["metadata"]["annotations"] = {key: mark}
    where = f"{cluster.path('rival/appwrappers')}?dryRun=All"
    answer = cluster.ask("POST", where, wrapper, user="only appwrappers")
    assert "only appwrappers may not create pods in rival" in answer.words, answer


def test_a_webhook_with_a_client_authority_serves_api_servers_that_show_a_certificate_alone(
    tmp_path: Path,
) -> None:
    # That pods are injected, and a wrapper judged, is waited for.
    with attacked(tmp_path, needed(), certified=True) as certified:
        assert len(certified.webhooks) == 4
        for webhook in certified.webhooks:
            answer = certified.call(webhook, "/", {})
            assert (answer.status, answer.body) == (0, {}), webhook


DRY_RUNS = 5_000
LONG = "x" * 240
REVIEWED: dict[str, tuple[str, str, str, Object]] = {
    "preflight-injector": (
        *("/mutate-pod", "pods", "gpu-pod"),
        {"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": f"{LONG}-#"}]}},
    ),
    "preflight-gpu-scheduler-webhook": (
        *("/mutate-pods", "pods", "claim-pod"),
        {"metadata": {"annotations": {"gpu.scheduling/claim": f"{LONG}-#"}}},
    ),
    "preflight-appwrapper-webhook": (
        *("/mutate-workload-codeflare-dev-v1beta2-appwrapper", "appwrappers", "appwrapper"),
        {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q-#"}}},
    ),
    "preflight-mnnvl-webhook": (
        *("/mutate-podclique", "podcliques", "podclique"),
        {"metadata": {"labels": {"app.kubernetes.io/part-of": "set-#"}}},
    ),
}
"""By webhook: its path, the kind, an object of `world.toml` and what makes each of them another:
`#` is a number.
"""


@pytest.mark.parametrize("webhook", REVIEWED)
def test_thousands_of_dry_runs_leave_a_webhook_half_of_its_memory_and_others_are_served(
    cluster: Attacked, webhook: str
) -> None:
    path, resource, name, change = REVIEWED[webhook]
    pid, limit = cluster.memory[webhook]
    about, chance = cluster.about(f"rival/{resource}"), random.Random(31)
    group, _, version = about["apiVersion"].rpartition("/")
    unsure = ssl.create_default_context()
    unsure.check_hostname, unsure.verify_mode = False, ssl.CERT_NONE
    sent = http.client.HTTPSConnection("127.0.0.1", cluster.webhooks[webhook], context=unsure)
    for number in range(DRY_RUNS):
        noise = {"annotations": {"example.com/noise": chance.randbytes(10_000).hex()}}
        different = json.loads(json.dumps(change).replace("#", str(number)))
        made = merged(merged(cluster.objects[name], {"metadata": noise}), different)
        request = {
            **{"uid": f"u-{number}", "operation": "CREATE", "namespace": "rival", "dryRun": True},
            "kind": {"group": group, "version": version, "kind": about["kind"]},
            "resource": {"group": group, "version": version, "resource": resource},
            "userInfo": {"username": f"somebody-{LONG}-{number}"},
            "object": merged(about | made, {"metadata": {"name": f"dear-{number}"}}),
        }
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": request,
        }
        sent.request("POST", path, json.dumps(review), {"Content-Type": "application/json"})
        answer = sent.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
        if number % 1_000 == 0:
            ordinary = f"{cluster.path('team/pods')}?dryRun=All"
            assert cluster.ask("POST", ordinary, cluster.objects["gpu-pod"]).status == 201
    sent.close()
    assert resident_mb(pid) < limit / 2


def test_every_attacker_is_among_the_rows_and_every_account_of_ours(cluster: Attacked) -> None:
    tried = {row.who.partition(" on ")[0] for row in ROWS}
    accounts = cluster.ask("GET", cluster.path("preflight/serviceaccounts")).body["items"]
    assert {f"token {each['metadata']['name']}" for each in accounts} <= tried
    assert {"edit", "all", "node n1", "nobody", "pod team"} <= tried
    assert len(ROWS) >= 150


def test_rows_have_names_of_their_own_and_one_expectation() -> None:
    assert [name for name, count in Counter(row.row for row in ROWS).items() if count > 1] == []
    assert [row.row for row in ROWS if bool(row.refused) == bool(row.shows)] == []
