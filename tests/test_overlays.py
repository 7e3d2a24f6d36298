"""The overlays of deploy/overlays, and the rules, by the tools that read them: kustomize and promtool.

Where a tool is missing its tests are skipped. That each patch meets something is checked without tools.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ssd.cli.main import app
from tests.test_fleet import KUBERNETES, ROOT, documents, of_kind

OVERLAYS = sorted(path.parent for path in ROOT.glob("deploy/overlays/*/kustomization.yaml"))
OURS = ("apps", "autoscaling", "networking.k8s.io", "policy", "v1")
"""API groups whose schemas belong to Kubernetes."""


def kustomization(overlay: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((overlay / "kustomization.yaml").read_text()))


def built(folder: Path) -> list[dict[str, Any]]:
    tools = {"kustomize": ["kustomize", "build"], "kubectl": ["kubectl", "kustomize"]}
    command = next((words for tool, words in tools.items() if shutil.which(tool)), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl is there")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", [ROOT / "deploy/kubernetes", *OVERLAYS], ids=lambda path: path.name)
def test_kustomize_builds_manifests_that_are_valid(folder: Path) -> None:
    found = built(folder)
    assert {"ssd-draft", "ssd-target"} <= {
        each["metadata"]["name"] for each in found if each["kind"] == "Deployment"
    }
    assert all(each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "ssd" for each in found)
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in found:
        if each["apiVersion"].split("/")[0] in OURS:
            validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_each_patch_meets_something(overlay: Path) -> None:
    said = kustomization(overlay)
    assert [(overlay / each).resolve() for each in said["resources"]] == [ROOT / "deploy/kubernetes"]
    for patch in said["patches"]:
        target = patch["target"]
        [found] = [each for each in of_kind(target["kind"]) if each["metadata"]["name"] == target["name"]]
        operations = yaml.safe_load(patch["patch"])
        for each in operations if isinstance(operations, list) else ():
            *way, last = each["path"].strip("/").split("/")
            place: Any = found
            for name in way:
                place = place[int(name) if isinstance(place, list) else name]
            if each["op"] == "replace":
                key = int(last) if isinstance(place, list) else last.replace("~1", "/")
                assert type(place[key]) is type(each["value"]), each


def test_without_the_operator_nothing_of_it_is_left() -> None:
    found = built(ROOT / "deploy/overlays/plain")
    assert [each["kind"] for each in found if "monitoring.coreos.com" in each["apiVersion"]] == []
    assert "HorizontalPodAutoscaler" not in {each["kind"] for each in found}


def test_the_example_of_other_models_pays_by_our_own_plan() -> None:
    overlay = ROOT / "deploy/overlays/llama-70b"
    containers = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]["containers"][0]
        for each in built(overlay)
        if each["kind"] == "Deployment"
    }
    target, draft = containers["ssd-target"], containers["ssd-draft"]
    ranks = target["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--tensor-parallel-size={ranks}" in target["args"]
    models = [target["args"][0], draft["args"][0].removeprefix("--model=")]
    names = [each.rpartition("/")[2].lower().removesuffix("-instruct") for each in models]
    said = (
        f"plan --hardware h100 --target {names[0]} --draft {names[1]} --devices {ranks + 1} --batch 4".split()
    )
    assert " ".join(said) in (overlay / "kustomization.yaml").read_text()
    offers = json.loads(CliRunner().invoke(app, [*said, "--json"]).stdout)["offers"]
    per_device = {each["way"]: each["per_device"] for each in offers if each["tp"] == ranks}
    assert per_device["ssd"] > per_device["sd"]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """As Prometheus itself reads them, without the operator."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not there")
    [document] = documents("rules.yaml")
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": document["spec"]["groups"]}))
    return file


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules(rules: Path) -> None:
    promtool("check", "rules", str(rules))


SERIES = {
    'ssd_rounds_total{pod="a"}': "0+100x40",
    'ssd_spec_hits_total{pod="a"}': "0+50x40",
    'ssd_spec_misses_total{pod="a",cause="late"}': "0+50x40",
    'ssd_drafts_ready{pod="a"}': "1+0x40",
    'ssd_drafts_ready{pod="b"}': "0+0x40",
}
"""A pool whose drafts are late in half of its rounds, and one target that has none."""


@pytest.mark.parametrize(
    ("name", "labels"),
    [("SSDDraftsLate", {}), ("SSDNoDraft", {"pod": "b"}), ("SSDDraftsFull", None), ("SSDNoTargets", None)],
)
def test_alerts_fire_when_they_should(rules: Path, name: str, labels: dict[str, str] | None) -> None:
    groups = yaml.safe_load(rules.read_text())["groups"]
    [rule] = [rule for group in groups for rule in group["rules"] if rule.get("alert") == name]
    expected = {
        "exp_labels": {**(labels or {}), **rule["labels"]},
        "exp_annotations": {
            key: text.replace("{{ $labels.pod }}", (labels or {}).get("pod", ""))
            for key, text in rule["annotations"].items()
        },
    }
    fires = [] if labels is None else [expected]
    case = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in SERIES.items()],
        "alert_rule_test": [{"eval_time": "30m", "alertname": name, "exp_alerts": fires}],
    }
    file = rules.with_name("test.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": [case]}))
    promtool("test", "rules", str(file))
