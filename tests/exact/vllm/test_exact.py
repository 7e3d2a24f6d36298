"""vLLM's V2 runner decides the same tokens with a draft, without a draft and without anything of ours.

Plain vLLM is the definition. Each kind of vLLM answers all rows (rows.py) in one process (run.py), in the
stand-in for a GPU of tests/vllm/bed. Stock vLLM schedules synchronously, our worker asynchronously. V1's
worker is compared with itself, and with stock V2 where no noise is drawn.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssd.integrations.vllm.contract import TESTED
from tests.exact.vllm.rows import LONG, SHORT, V1, Row
from tests.tiny import cut_layers, write_checkpoint
from tests.vllm.overlay import overlaid
from tests.vllm.releases import cached, sources

pytest.importorskip("vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
BED = ROOT / "tests" / "vllm" / "bed"
LOGPROB_TOLERANCE = 1e-3
"""Log-probabilities of a step with other rows differ in their last bits."""
Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and three drafts. Their heads are as wide as vLLM's attention for CPUs wants them."""
    folder = tmp_path_factory.mktemp("models")
    write_checkpoint("qwen3", folder / "good")
    cut_layers(folder / "good", 2, folder / "fair")
    write_checkpoint("qwen3", folder / "random", seed=9)
    return folder


def answers(models: Path, into: Path, kind: str, *options: str, first: Path | None = None) -> Answers:
    """What one vLLM of this kind says to each row; `first`: packages that come before the installed ones."""
    is_v2 = "v1" not in options
    paths = (BED if is_v2 else None, first, ROOT / "src", ROOT)
    bed = {"TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"} if is_v2 else {}
    told = ("--models", str(models), "--into", str(into / "answers"), *options)
    subprocess.run(
        [sys.executable, "-m", "tests.exact.vllm.run", kind, *told],
        check=True,
        cwd=ROOT,
        env={**os.environ, **bed, "PYTHONPATH": os.pathsep.join(str(each) for each in paths if each)},
    )
    lines = [json.loads(line) for line in (into / "answers").read_text().splitlines()]
    return {line["name"]: line for line in lines}


class Kinds:
    """The answers of all kinds to the same rows, each kind started when it is first asked for."""

    def __init__(self, models: Path, factory: pytest.TempPathFactory, rows: str) -> None:
        self._models, self._factory, self._rows = models, factory, rows
        self._found = dict[tuple[str, ...], Answers]()

    def __call__(self, kind: str, *options: str) -> Answers:
        key = (kind, "--rows", self._rows, *options)
        if key not in self._found:
            self._found[key] = answers(self._models, self._factory.mktemp(kind), *key)
        return self._found[key]

    def stock(self) -> Answers:
        return self("stock", "--synchronous")


@pytest.fixture(scope="module")
def short(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    return Kinds(models, tmp_path_factory, "SHORT")


@pytest.fixture(scope="module")
def long(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    return Kinds(models, tmp_path_factory, "LONG")


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, text in one.items():
        assert _without_logprobs(text) == _without_logprobs(other[key]), key
        pairs = zip(text.get("logprobs", ()), other[key].get("logprobs", ()), strict=True)
        for mine, theirs in pairs:
            assert mine == pytest.approx(theirs, abs=LOGPROB_TOLERANCE), key


def _without_logprobs(text: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in text.items() if name != "logprobs"}


def by_name(rows: tuple[Row, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row.name)


@by_name(SHORT)
def test_our_worker_alone_decides_as_stock_vllm(short: Kinds, row: Row) -> None:
    if row.is_fixed:
        same(short("detached")[row.name]["texts"], short.stock()[row.name]["texts"])


@by_name(SHORT)
def test_a_draft_changes_no_token(short: Kinds, row: Row) -> None:
    found = short("attached")[row.name]
    same(found["texts"], short("detached")[row.name]["texts"])
    for name in row.also:
        assert found["counted"].get(name, 0) > 0, f"{name}: {found['counted']}"
    assert not found["counted"].get("errors")


ROWS_A_GOOD_DRAFT_PREDICTS = {
    "greedy",
    "seeded",
    "unseeded",
    "extreme seeds",
    "top-k",
    "top-p",
    "penalties",
    "greedy, penalties",
}
ROWS_A_GOOD_DRAFT_PREDICTS |= {
    "bad words",
    "minimum length",
    "log-probabilities",
    "n = 2",
    "cached prefix",
    "aborts",
    "preemption",
}
"""A draft that is told all of the request and has the same weights is right, except beyond a text's end."""


def test_a_good_draft_saves_steps(short: Kinds) -> None:
    """A draft that is right is not enough: its tokens must arrive, be chosen, and be accepted."""
    rows = [row for row in SHORT if row.name in ROWS_A_GOOD_DRAFT_PREDICTS]
    for row in rows:
        totals = _totals(short("attached"), [row])
        assert totals["accepted"] > 0.6 * totals["drafted"], row.name
    totals = _totals(short("attached"), rows)
    assert totals["accepted"] > 0.85 * totals["drafted"]
    assert totals["accepted"] > 0.55 * totals["tokens"]
    assert totals["audited"] > 0


def _totals(found: Answers, rows: list[Row]) -> dict[str, float]:
    counted = [found[row.name]["counted"] for row in rows]
    totals = {name: sum(each.get(name, 0) for each in counted) for name in ("accepted", "drafted", "audited")}
    texts = [text for row in rows for text in found[row.name]["texts"].values()]
    return {**totals, "tokens": sum(len(text["tokens"]) for text in texts)}


def test_the_comparison_notices_another_seed(short: Kinds) -> None:
    texts = [short.stock()[name]["texts"] for name in ("seeded", "extreme seeds")]
    one, other = ([text["tokens"] for text in each.values()] for each in texts)
    assert one != other


@pytest.mark.slow
def test_many_mixtures_of_features(long: Kinds) -> None:
    stock, detached, attached = long.stock(), long("detached"), long("attached")
    synchronous = long("attached", "--synchronous")
    for row in LONG:
        if row.is_fixed:
            same(detached[row.name]["texts"], stock[row.name]["texts"])
        same(attached[row.name]["texts"], detached[row.name]["texts"])
        same(synchronous[row.name]["texts"], detached[row.name]["texts"])


@pytest.fixture(scope="module")
def v1(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """By the newest tested release where its sources are at hand, else by the installed one.

    The newest release has no build for CPUs: its Python runs over the installed compiled libraries.
    """
    place = tmp_path_factory.mktemp("v1")
    found = cached(TESTED[-1])
    first = overlaid(place / "overlay", found, TESTED[-1]) if found is not None else None
    options = ("--runner", "v1", "--rows", "V1", "--padded")
    return answers(models, place, "attached", *options, first=first)


@by_name(V1)
def test_a_draft_changes_no_token_of_v1(v1: Answers, short: Kinds, row: Row) -> None:
    found = v1[row.name]
    same(found["texts"], found["alone"])
    assert found["counted"]["drafted"] > 0
    if row.sampling["temperature"] == 0:
        same(found["texts"], short.stock()[row.name]["texts"])


def test_v1_accepts_and_pads(v1: Answers) -> None:
    for name in ("accepted", "padding"):
        assert sum(each["counted"][name] for each in v1.values()) > 0


def test_v1_was_run_by_the_newest_tested_release(v1: Answers) -> None:
    sources(TESTED[-1])
    assert {each["version"] for each in v1.values()} == {TESTED[-1]}
