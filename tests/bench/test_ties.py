"""Where texts part, a run measures how close the two tokens' scores were."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from ssd.attention.inputs import PlainInput
from ssd.bench.cases import cases_of
from ssd.bench.engines import CaseEngines
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import Manifest, Provenance, RunSettings
from ssd.bench.records import CaseRecord
from ssd.bench.runs import BenchRun, digests
from ssd.runtime.runner import forward
from tests.sampling.noise import gumbel_noise

PROMPTS = {"fox": ["The quick brown fox", "The lazy dog"]}
SEED, PLACE = 5, 3


def scores(engines: CaseEngines, prompt: str, written: list[int], t: float, seed: int) -> torch.Tensor:
    """Of every token that could come next, as sampling compares them."""
    ids = [*engines.engine.requests.tokenizer(prompt).input_ids, *written]
    logits = forward(engines.engine.loaded.runner, [PlainInput(ids, 0, [0, 1, 2], 1, generated=False)])[0]
    return logits + t * gumbel_noise([seed], [len(ids)], len(logits))[0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_run_measures_the_gap_where_texts_part(
    tmp_path: Path, engines: CaseEngines, tiny_llama: Path, tiny_draft: str, temperature: float
) -> None:
    """One text of a run is made to leave the other at its second best token, and the run goes on."""
    cases = cases_of("ar,sd2", [temperature], [1])
    folder = RunFolder(tmp_path / "run")
    settings = RunSettings(
        model=str(tiny_llama), draft=tiny_draft, cases=[each.label for each in cases], datasets=["fox"],
        num_prompts=2, first_prompt=0, max_tokens=6, seed=SEED, deterministic=False, prompts=digests(PROMPTS),
        engine={},
    )  # fmt: skip
    session = Provenance(started="2026-01-01T00:00:00+00:00", commit=None, versions={}, hardware={})
    manifest = Manifest(settings=settings, sessions=[session])
    BenchRun(folder, manifest, cases, PROMPTS).go_on(engines, lambda case, records: None)
    assert folder.ties() == []
    first, *rest = folder.records()
    assert first.prompt == 0
    tokens = list(first.tokens)
    found = scores(engines, PROMPTS["fox"][0], tokens[:PLACE], temperature, SEED)
    best, second = found.topk(2).indices.tolist()
    assert best == tokens[PLACE]
    changed = replace(first, tokens=[*tokens[:PLACE], second, *tokens[PLACE + 1 :]])
    _write(folder, [changed, *rest[:-1]])
    BenchRun(folder, manifest, cases, PROMPTS).go_on(engines, lambda case, records: None)
    (tie,) = folder.ties()
    assert (tie.dataset, tie.prompt, tie.place) == ("fox", 0, PLACE)
    assert tie.gap == pytest.approx(float(found[best] - found[second]), abs=1e-4)


def _write(folder: RunFolder, records: list[CaseRecord]) -> None:
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in records)
    (folder.path / "records.jsonl").write_bytes(lines)
