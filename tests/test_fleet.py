"""Manifests, rules and the dashboard of a pool: valid, at one with each other and with what there is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd.integrations.vllm.meter import COUNTERS, GAUGES, NAMES
from ssd.integrations.vllm.settings import Settings
from tests.test_images import parse

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy/kubernetes"
KUBERNETES = "1.31"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def of_kind(kind: str) -> list[dict[str, Any]]:
    found = [each for path in sorted(FOLDER.glob("*.yaml")) for each in documents(path.name)]
    return [each for each in found if each["kind"] == kind]


def container(name: str) -> dict[str, Any]:
    deployment = next(each for each in of_kind("Deployment") if each["metadata"]["name"] == name)
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(found)


def rules() -> Iterator[dict[str, Any]]:
    [document] = of_kind("PrometheusRule")
    for group in document["spec"]["groups"]:
        yield from group["rules"]


def exported() -> set[str]:
    """By our server and by vLLM's worker, as Prometheus has them."""
    server = "".join(
        (ROOT / "src/ssd/server" / name).read_text() for name in ("metrics.py", "engine_metrics.py")
    )
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', server) + re.findall(r'"([a-z]+)": \(', server)
    names = {f"ssd_{name.removeprefix('ssd_')}" for name in (*written, *COUNTERS, *GAUGES, *NAMES)}
    return names | {f"{name}_{end}" for name in names for end in ("total", "bucket", "sum", "count")}


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\bssd_[a-z0-9_]+", text))


@pytest.mark.parametrize("name", ["drafts.yaml", "targets.yaml", "autoscaling.yaml"])
def test_manifests_are_valid(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    found = documents(name)
    assert found
    for each in found:
        validate(each, KUBERNETES, strict=True)


def test_a_manifest_that_is_not_valid_is_found_out() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    [autoscaler] = documents("autoscaling.yaml")
    autoscaler["spec"]["maxReplica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(autoscaler, KUBERNETES, strict=True)


def test_kustomize_takes_every_file() -> None:
    [base] = documents("kustomization.yaml")
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(base["resources"]) == files


def test_every_metric_of_rules_and_dashboard_exists() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    expressions = " ".join(rule["expr"] for rule in rules())
    dashboard = (ROOT / "deploy/grafana-pool.json").read_text()
    named = named_in(expressions) | named_in(dashboard)
    assert len(named) > 8
    assert named - exported() - recorded == set()


def test_drafts_are_scaled_by_figures_that_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    [autoscaler] = of_kind("HorizontalPodAutoscaler")
    scaled_by = [each["external"]["metric"]["name"] for each in autoscaler["spec"]["metrics"]]
    assert set(scaled_by) <= recorded
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "ssd-draft"


def test_every_alert_says_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 5
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "remedy"}, alert["alert"]


def test_the_drafts_command_is_one_that_there_is() -> None:
    draft = container("ssd-draft")
    given = parse([*draft["command"][2:], *draft["args"]])
    assert given["listen"] == f"tcp://0.0.0.0:{draft['ports'][0]['containerPort']}"


def test_targets_look_for_drafts_where_they_are() -> None:
    target = container("ssd-target")
    [said] = [each for each in target["args"] if each.startswith("--additional-config=")]
    settings = Settings.from_additional_config(json.loads(said.partition("=")[2]))
    service = next(each for each in of_kind("Service") if each["spec"].get("clusterIP") == "None")
    port = service["spec"]["ports"][0]["port"]
    assert settings.draft == f"dns://{service['metadata']['name']}:{port}"
    assert settings.draft_keys in [each["mountPath"] for each in target["volumeMounts"]]
    draft = next(each for each in of_kind("Deployment") if each["metadata"]["name"] == "ssd-draft")
    labels = draft["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_dashboard_has_a_panel_for_each_cause() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana-pool.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["targets"][0]["expr"] and panel["description"] for panel in dashboard["panels"])


def test_every_cause_of_a_miss_is_recorded_shown_and_told_of_by_tenant() -> None:
    dashboard = (ROOT / "deploy/grafana-pool.json").read_text()
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    recorded = {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}
    remedies = {
        "late": ("SSDTenantLate", "faster drafts"),
        "unheard": ("SSDTenantUnheard", "capacity"),
        "unknown": ("SSDTenantUnfit", "a better draft"),
    }
    for cause, (alert, remedy) in remedies.items():
        share = f"ssd_tenant_{cause}_share"
        assert f'cause="{cause}"' in recorded[share]
        assert "ssd_tenant_of_pod" in recorded[share]
        assert share in dashboard
        assert share in alerts[alert]["expr"]
        assert remedy in alerts[alert]["annotations"]["remedy"]
        assert "$labels.tenant" in alerts[alert]["annotations"]["summary"]
