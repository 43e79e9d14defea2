"""Every row of `e2e/attacks`: one request of one attacker, against a real API server with all
charts installed, and their webhooks.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from preflight_e2e.attacked import Attack, Attacked, rows
from preflight_e2e.everything import attacked, missing
from preflight_testing.apiserver import ASSETS, assets

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


def test_every_attacker_is_among_the_rows_and_every_account_of_ours(cluster: Attacked) -> None:
    tried = {row.who.partition(" on ")[0] for row in ROWS}
    accounts = cluster.ask("GET", cluster.path("preflight/serviceaccounts")).body["items"]
    assert {f"token {each['metadata']['name']}" for each in accounts} <= tried
    assert {"edit", "all", "node n1", "nobody", "pod team"} <= tried
    assert len(ROWS) >= 150


def test_rows_have_names_of_their_own_and_one_expectation() -> None:
    assert [name for name, count in Counter(row.row for row in ROWS).items() if count > 1] == []
    assert [row.row for row in ROWS if bool(row.refused) == bool(row.shows)] == []
