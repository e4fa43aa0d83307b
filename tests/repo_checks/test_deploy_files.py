"""The files in docs/deploy name metrics and options that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from one_call import call
from quire.cli.main import cli
from quire.routing.front import Front

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
if not DEPLOY.exists():
    pytest.skip("the tests run without the repository", allow_module_level=True)
yaml = pytest.importorskip("yaml")


def documents(name: str) -> list[Any]:
    return [each for each in yaml.safe_load_all((DEPLOY / name).read_text()) if each]


def expressions() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [rule for group in documents("prometheus_rules.yaml")[0]["groups"] for rule in group["rules"]]
    return found + [rule["expr"] for rule in rules]


def exported() -> set[str]:
    """Names of series that a server and a front export."""
    front = Front(["http://localhost:1"])
    front.counts.update(("requests", "blocks", "matched", "retried", "broken", "refused"))
    names = {line.split("{")[0].split()[0] for line in front._metrics().splitlines()}
    for line in call("GET", "/metrics").text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            names |= {name} if kind != "histogram" else {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return names


def test_dashboards_and_rules_ask_for_metrics_that_exist() -> None:
    rules = [rule for group in documents("prometheus_rules.yaml")[0]["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    asked = {name for text in expressions() for name in re.findall(r"\bquire[_:][a-z0-9_:]+", text)}
    assert len(asked) > 20
    assert asked - recorded <= exported()


def test_panels_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize("part", ["replica", "front"])
def test_pods_start_quire_with_options_that_exist(part: str) -> None:
    sets = [each for each in documents("kubernetes.yaml") if each["kind"] in ("Deployment", "StatefulSet")]
    (found,) = [each for each in sets if each["spec"]["selector"]["matchLabels"]["part"] == part]
    (container,) = found["spec"]["template"]["spec"]["containers"]
    command = "route" if part == "front" else "serve"
    made = cli.get_command(click.Context(cli), command)
    assert made is not None
    known = {option for each in made.params for option in each.opts}
    options = {word for word in container["args"] if word.startswith("--")}
    assert options
    assert options <= known
    assert found["spec"]["template"]["metadata"]["labels"]["part"] == part


def test_selectors_match_the_pods_and_the_grace_covers_the_drain() -> None:
    found = documents("kubernetes.yaml")
    pods = [each["spec"]["template"] for each in found if "template" in each["spec"]]
    for each in found:
        selector = each["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= pod["metadata"]["labels"].items() for pod in pods), each["kind"]
    (replica,) = [pod for pod in pods if pod["metadata"]["labels"]["part"] == "replica"]
    args = replica["spec"]["containers"][0]["args"]
    assert replica["spec"]["terminationGracePeriodSeconds"] > int(args[args.index("--drain") + 1]) + 5
