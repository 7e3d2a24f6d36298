"""Manifests, rules and the dashboard of a pool: valid, at one with each other and with what there is."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ssd.cli.main import app
from ssd.integrations.vllm.guard import GUARD
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
    server = (ROOT / "src/ssd/server/metrics.py").read_text()
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', server) + re.findall(r'"([a-z]+)": \(', server)
    names = {f"ssd_{name.removeprefix('ssd_')}" for name in (*written, *COUNTERS, *GAUGES, *NAMES)}
    return names | {f"{name}_{end}" for name in names for end in ("total", "bucket", "sum", "count")}


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\bssd_[a-z0-9_]+", text))


@pytest.mark.parametrize(
    "name", ["drafts.yaml", "targets.yaml", "autoscaling.yaml", "hub.yaml", "network.yaml"]
)
def test_manifests_are_valid(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    found = documents(name)
    assert found
    for each in found:
        validate(each, KUBERNETES, strict=True)


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


def test_every_alert_says_what_to_do_and_has_its_section_in_the_runbook() -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    table = page[page.index("| you see") : page.index("\n## ")]
    alerts = [rule for rule in rules() if "alert" in rule]
    for rule in alerts:
        said = rule["annotations"]
        assert len(said["remedy"].split()) > 5, rule["alert"]
        file, _, anchor = said["runbook"].partition("#")
        assert file == "docs/runbook.md"
        assert f"`{rule['alert']}`" in table
        assert f"(#{anchor})" in next(row for row in table.splitlines() if f"`{rule['alert']}`" in row)
    assert set(re.findall(r"`(SSD\w+)`", page)) == {rule["alert"] for rule in alerts}


def test_the_runbook_names_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    named = named_in((ROOT / "docs/runbook.md").read_text())
    assert len(named) > 20
    assert named - exported() - recorded == set()


def test_drafts_are_scaled_by_figures_that_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    [autoscaler] = of_kind("HorizontalPodAutoscaler")
    scaled_by = [each["external"]["metric"]["name"] for each in autoscaler["spec"]["metrics"]]
    assert set(scaled_by) <= recorded
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "ssd-draft"


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


def test_targets_are_started_as_our_own_command_starts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `ssd serve --print-commands` for GPUs, where vLLM chooses its V2 runner."""
    target = container("ssd-target")
    assert not any(each["name"] == "VLLM_USE_V2_MODEL_RUNNER" for each in target["env"])
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    draft = json.loads(argument("ssd-target", "--additional-config"))["ssd"]
    given = {
        "--draft": draft["draft"],
        "--draft-keys": draft["draft_keys"],
        "--draft-timeout": draft["draft_timeout"],
        "--host": argument("ssd-target", "--host"),
        "--drain-seconds": argument("ssd-target", "--shutdown-timeout"),
        "--tensor-parallel-size": argument("ssd-target", "--tensor-parallel-size"),
    }
    words = [str(word) for pair in given.items() for word in pair]
    ran = CliRunner().invoke(
        app, ["serve", target["args"][0], *words, "--engine", "vllm", "--print-commands"]
    )
    assert ran.exit_code == 0, ran.output
    printed = shlex.split(ran.output[ran.output.index("vllm serve") :].replace("\\\n", " "))
    said = dict(zip(printed[3::2], printed[4::2], strict=True))
    assert printed[2] == target["args"][0]
    assert said.pop("--port") == str(target["ports"][0]["containerPort"])
    assert len(said) > 5
    for flag, value in said.items():
        mine = argument("ssd-target", flag)
        assert (json.loads(mine) == json.loads(value)) if value.startswith("{") else mine == value, flag


def pod(name: str) -> dict[str, Any]:
    deployment = next(each for each in of_kind("Deployment") if each["metadata"]["name"] == name)
    return dict(deployment["spec"]["template"]["spec"])


def argument(name: str, flag: str) -> str:
    [said] = [each for each in container(name)["args"] if each.startswith(f"{flag}=")]
    return str(said.partition("=")[2])


def test_requests_finish_before_a_target_is_ended() -> None:
    """vLLM's shutdown has 10 seconds beside, as `ssd serve` gives it."""
    assert (
        int(argument("ssd-target", "--shutdown-timeout")) + 10
        < pod("ssd-target")["terminationGracePeriodSeconds"]
    )


def test_a_containers_figures_begin_anew(tmp_path: Path) -> None:
    """By the command itself: with a vLLM that is made up, in a folder that has files of one before."""
    target = container("ssd-target")
    [folder] = [each["value"] for each in target["env"] if each["name"] == "PROMETHEUS_MULTIPROC_DIR"]
    assert folder in [each["mountPath"] for each in target["volumeMounts"]]
    _, _, shell, flag, script, name = target["command"]
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics/counter_1.db").touch()
    (tmp_path / "vllm").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "vllm").chmod(0o755)
    words = [shell, flag, script.replace(folder, f"{tmp_path}/metrics"), name, *target["args"]]
    path = f"{tmp_path}:/usr/bin:/bin"
    told = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["serve", *target["args"]]
    assert list((tmp_path / "metrics").iterdir()) == []


def test_callers_and_prometheus_need_the_key() -> None:
    target = container("ssd-target")
    assert argument("ssd-target", "--middleware") == GUARD
    [key] = [each["valueFrom"]["secretKeyRef"] for each in target["env"] if each["name"] == "VLLM_API_KEY"]
    [monitor] = of_kind("PodMonitor")
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == key
    assert endpoint["port"] == target["ports"][0]["name"]
    deployment = next(each for each in of_kind("Deployment") if each["metadata"]["name"] == "ssd-target")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert key["name"] in (FOLDER / "kustomization.yaml").read_text()


@pytest.mark.parametrize("name", ["ssd-draft", "ssd-target"])
def test_a_pod_is_bounded_watched_and_reached_by_few(name: str) -> None:
    found = container(name)
    assert found["livenessProbe"]
    assert found["resources"]["limits"]["memory"]
    [policy] = [each for each in of_kind("NetworkPolicy") if each["metadata"]["name"] == name]
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": name}
    ports = [each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]]
    assert ports == [found["ports"][0]["containerPort"]]
    assert all(rule["from"] for rule in policy["spec"]["ingress"])
    [claim] = of_kind("PersistentVolumeClaim")
    volumes = {each["name"]: each for each in pod(name)["volumes"]}
    assert volumes["hub"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_example_pays_by_our_own_plan() -> None:
    """A draft's device earns more than the target's devices do with vLLM's own speculation."""
    ranks = int(argument("ssd-target", "--tensor-parallel-size"))
    assert container("ssd-target")["resources"]["limits"]["nvidia.com/gpu"] == ranks
    models = [container("ssd-target")["args"][0], argument("ssd-draft", "--model")]
    target, draft = (each.rpartition("/")[2].lower() for each in models)
    said = f"plan --hardware h100 --target {target} --draft {draft} --devices {ranks + 1} --batch 4"
    assert said in (FOLDER / "kustomization.yaml").read_text()
    found = CliRunner().invoke(app, [*said.split(), "--json"])
    assert found.exit_code == 0, found.output
    offers = [each for each in json.loads(found.stdout)["offers"] if each["tp"] == ranks]
    per_device = {each["way"]: each["per_device"] for each in offers}
    assert per_device["ssd"] > per_device["sd"]
