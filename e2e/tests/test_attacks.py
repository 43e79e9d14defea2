"""Every row of `e2e/attacks`: one request of one attacker, against a real API server with all
charts installed, and their webhooks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from preflight_e2e.attacked import Attack, Attacked, attacked, missing, rows
from preflight_testing.apiserver import ASSETS, assets

pytestmark = pytest.mark.timeout(400)
ROWS = rows()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    if names := missing():
        pytest.skip(f"{', '.join(names)}: not installed beside this interpreter; nox -s attacks")
    with attacked(tmp_path_factory.mktemp("attacked"), folder) as found:
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


def test_every_attacker_is_among_the_rows_and_every_account_of_ours(cluster: Attacked) -> None:
    tried = {row.who.partition(" on ")[0] for row in ROWS}
    accounts = cluster.ask("GET", cluster.path("preflight/serviceaccounts")).body["items"]
    assert {f"token {each['metadata']['name']}" for each in accounts} <= tried
    assert {"edit", "all", "node n1", "nobody", "pod team"} <= tried
    assert len(ROWS) >= 150


def test_rows_have_names_of_their_own_and_one_expectation() -> None:
    assert [name for name, count in Counter(row.row for row in ROWS).items() if count > 1] == []
    assert [row.row for row in ROWS if bool(row.refused) == bool(row.shows)] == []
