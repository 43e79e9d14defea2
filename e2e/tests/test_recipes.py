"""Values for platforms: each makes a whole installation that any Kubernetes takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from preflight_e2e import kubernetes_schemas
from preflight_testing.helm import CHARTS, UMBRELLA, render

RECIPES = sorted((CHARTS / "recipes").glob("*.yaml"))
PAGE = (CHARTS.parent / "docs" / "platforms.md").read_text()


@pytest.mark.component
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_renders_to_objects_that_kubernetes_knows(recipe: Path) -> None:
    values = yaml.safe_load(recipe.read_text())
    objects = render(UMBRELLA, values)
    for one in objects:
        kubernetes_schemas.validate(one, "1.36")
    deployed = {o["metadata"]["name"] for o in objects if o["kind"] == "Deployment"}
    assert {"preflight-injector", "preflight-gang"} <= deployed
    [config] = [
        yaml.safe_load(o["data"]["config.yaml"])
        for o in objects
        if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "preflight-injector"
    ]
    wanted = values["global"]["preflight"]["checks"]
    assert [check["name"] for check in config["checks"]] == [check["name"] for check in wanted]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_its_place_in_the_manual(recipe: Path) -> None:
    assert f"](../charts/recipes/{recipe.name})" in PAGE
