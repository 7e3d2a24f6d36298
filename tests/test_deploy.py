"""The files of deploy/ parse, fit each other and use flags and metrics that exist.

No container is built and no manifest is applied here.
"""

import json
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ssd.integrations.vllm.meter import COUNTERS, GAUGES, NAMES
from ssd.integrations.vllm.settings import Settings
from tests.command_line import parse

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
BASE, OVERLAY = DEPLOY / "kubernetes", DEPLOY / "overlays/plain"
IMAGES = sorted(DEPLOY.glob("Dockerfile.*"))
KUBERNETES = "1.31"
OURS = ("apps", "autoscaling", "networking.k8s.io", "policy", "v1")
"""API groups whose schemas belong to Kubernetes."""


def documents() -> list[dict[str, Any]]:
    """All manifests of the base."""
    files = sorted(set(BASE.glob("*.yaml")) - {BASE / "kustomization.yaml"})
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container(name: str) -> dict[str, Any]:
    [found] = named("Deployment", name)["spec"]["template"]["spec"]["containers"]
    return dict(found)


def argument(name: str, flag: str) -> str:
    [said] = [each for each in container(name)["args"] if each.startswith(f"{flag}=")]
    return str(said.partition("=")[2])


def rules() -> list[dict[str, Any]]:
    return [rule for group in named("PrometheusRule", "ssd")["spec"]["groups"] for rule in group["rules"]]


def exported() -> set[str]:
    """Metrics of our server and of the worker inside vLLM, as Prometheus names them."""
    server = (ROOT / "src/ssd/server/metrics.py").read_text()
    written = re.findall(r'"((?:ssd_)?[a-z0-9]+_[a-z0-9_]+)"', server) + re.findall(r'"([a-z]+)": \(', server)
    names = {f"ssd_{name.removeprefix('ssd_')}" for name in (*written, *COUNTERS, *GAUGES, *NAMES)}
    return names | {f"{name}_{end}" for name in names for end in ("total", "bucket", "sum", "count")}


@pytest.mark.parametrize("folder", [BASE, OVERLAY], ids=lambda path: path.name)
def test_kustomize_builds_manifests_that_are_valid(folder: Path) -> None:
    tools = {"kustomize": ["kustomize", "build"], "kubectl": ["kubectl", "kustomize"]}
    command = next((words for tool, words in tools.items() if shutil.which(tool)), None)
    if command is None:
        pytest.skip("neither kustomize nor kubectl is there")
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_valid(list(yaml.safe_load_all(done.stdout)))


def test_manifests_of_the_base_are_valid() -> None:
    base = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert set(base["resources"]) == {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert_valid(documents())


def assert_valid(manifests: list[dict[str, Any]]) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for each in manifests:
        if each["apiVersion"].split("/")[0] in OURS:
            validate(each, KUBERNETES, strict=True)


def test_each_patch_of_the_overlay_meets_a_manifest() -> None:
    said = yaml.safe_load((OVERLAY / "kustomization.yaml").read_text())
    assert [(OVERLAY / each).resolve() for each in said["resources"]] == [BASE]
    for patch in said["patches"]:
        assert named(patch["target"]["kind"], patch["target"]["name"])


def test_metrics_of_rules_dashboard_and_runbook_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    texts = [" ".join(rule["expr"] for rule in rules())]
    texts += [(ROOT / name).read_text() for name in ("deploy/grafana-pool.json", "docs/runbook.md")]
    json.loads(texts[1])
    for text in texts:
        found = set(re.findall(r"\bssd_[a-z0-9_]+", text))
        assert len(found) > 8
        assert found - exported() - recorded == set()
    scaled_by = named("HorizontalPodAutoscaler", "ssd-draft")["spec"]["metrics"]
    assert {each["external"]["metric"]["name"] for each in scaled_by} <= recorded


def test_every_alert_has_its_section_in_the_runbook() -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    alerts = {rule["alert"]: rule["annotations"] for rule in rules() if "alert" in rule}
    for name, said in alerts.items():
        file, _, anchor = said["runbook"].partition("#")
        assert file == "docs/runbook.md"
        assert f"(#{anchor})" in next(row for row in page.splitlines() if f"`{name}`" in row)
    assert set(re.findall(r"`(SSD\w+)`", page)) == set(alerts)


def test_targets_and_drafts_meet() -> None:
    draft = container("ssd-draft")
    port = draft["ports"][0]["containerPort"]
    assert parse([*draft["command"][2:], *draft["args"]])["listen"] == f"tcp://0.0.0.0:{port}"
    settings = Settings.from_additional_config(json.loads(argument("ssd-target", "--additional-config")))
    [service] = [each for each in documents() if each.get("spec", {}).get("clusterIP") == "None"]
    assert settings.draft == f"dns://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert settings.draft_keys in [each["mountPath"] for each in container("ssd-target")["volumeMounts"]]
    labels = named("Deployment", "ssd-draft")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def instructions(image: Path) -> list[tuple[str, str]]:
    """Each instruction with its arguments; comments removed, continued lines joined."""
    text = re.sub(r"^#.*\n", "", image.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    split = (line.partition(" ") for line in text.splitlines() if line)
    return [(word, " ".join(rest.split())) for word, _, rest in split]


def last(image: Path, word: str) -> str:
    return [rest for found, rest in instructions(image) if found == word][-1]


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.suffix[1:])
def test_images_run_as_a_user_without_rights_under_an_init(image: Path) -> None:
    assert last(image, "USER") not in ("root", "0")
    order = [word for word, _ in instructions(image)]
    assert "RUN" not in order[len(order) - order[::-1].index("USER") :]
    words = json.loads(last(image, "ENTRYPOINT"))
    assert words[:2] == ["tini", "--"]
    given = parse([*words[2:], "MODEL", "--draft", "SMALL_MODEL"])
    assert given["host"] == "0.0.0.0"
    assert ("vllm" in given.values()) == (image.suffix == ".vllm")


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.suffix[1:])
def test_images_are_pinned_and_copy_files_that_exist(image: Path) -> None:
    bases = [rest.partition(" ")[0] for word, rest in instructions(image) if word == "FROM"]
    assert all(re.search(r":v?\d+\.\d+\.\d+", base) for base in bases), bases
    runs = "\n".join(rest for _, rest in instructions(image))
    assert all("--constraint" in each for each in re.findall(r"pip install .*?(?=&&|$)", runs, re.MULTILINE))
    copied = [
        rest.split()[:-1] for word, rest in instructions(image) if word == "COPY" and "--from" not in rest
    ]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []


def test_constraints_name_one_version_within_our_ranges() -> None:
    lines = [each for each in (DEPLOY / "constraints.txt").read_text().splitlines() if each[0] != "#"]
    pinned = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["server"]]
    for each in map(Requirement, [*needed, *project["build-system"]["requires"]]):
        version = pinned[canonicalize_name(each.name)]
        assert each.specifier.contains(version, prereleases=True), f"{each} against {version}"


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ([], {}, 8000),
        ([], {"SSD_LISTEN_PORT": "9000"}, 9000),
        (["--port", "9001", ""], {"SSD_LISTEN_PORT": "9000"}, 9001),
        (["--port=9002"], {}, 9002),
    ],
)
def test_the_health_check_finds_the_port(
    words: list[str], environment: dict[str, str], expected: int
) -> None:
    command = ["tini", "--", "ssd", "serve", "MODEL", *words]
    assert runpy.run_path(str(DEPLOY / "health.py"))["port"](command, environment) == expected
