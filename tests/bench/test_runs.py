"""A run on real engines: interrupted, gone on with, complete; and refused where it is another one."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssd.bench.cases import Case, cases_of
from ssd.bench.engines import CaseEngines
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import Manifest, Provenance, RunSettings
from ssd.bench.records import CaseRecord
from ssd.bench.runs import BenchRun, OnTurn, batches, digests
from ssd.cli.main import app
from ssd.config import EngineConfig
from tests.bench.made_up import record, write_run

CASES = cases_of("ar,sd2,ssd", [0.0], [1])
PROMPTS = {"fox": ["The quick brown fox", "The lazy dog"], "code": ["def add(a, b):", "for i in range"]}
SESSION = Provenance(
    started="2026-01-01T00:00:00+00:00", commit=None, versions={}, hardware={"processor": "P"}
)


class _EnoughError(Exception):
    pass


def settings(model: Path, draft: str) -> RunSettings:
    return RunSettings(
        model=str(model), draft=draft, cases=[case.label for case in CASES], datasets=list(PROMPTS),
        num_prompts=2, first_prompt=0, max_tokens=12, seed=5, deterministic=True, prompts=digests(PROMPTS),
        engine={},
    )  # fmt: skip


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, engines: CaseEngines, tiny_llama: Path, tiny_draft: str
) -> None:
    folder = RunFolder(tmp_path / "run")
    manifest = Manifest(settings=settings(tiny_llama, tiny_draft), sessions=[SESSION])
    told: list[tuple[str, str, int]] = []

    def note(case: Case, records: Sequence[CaseRecord]) -> None:
        told.extend((each.case, each.dataset, each.prompt) for each in records)
        if len(told) == 5:
            raise _EnoughError

    first = BenchRun(folder, manifest, CASES, PROMPTS)
    assert (first.num_texts, first.num_done, first.is_complete) == (12, 0, False)
    with pytest.raises(_EnoughError):
        first.go_on(engines, note)
    with (folder.path / "records.jsonl").open("a") as file:
        file.write('{"dataset": "fox", "cut o')  # as a kill in the middle of a line leaves it
    again = BenchRun(folder, manifest, CASES, PROMPTS)
    assert again.num_done == 3
    interrupted = {each.case: each for each in folder.records() if each.dataset == "code"}
    assert len(interrupted) == 2
    again.go_on(engines, note)
    assert again.is_complete
    keys = [(each.case, each.dataset, each.prompt) for each in folder.records()]
    assert set(keys) == set(told)
    assert len(keys) == 12
    # The prompt at which it ended is measured whole again: no ratio spans two days.
    assert told[3:5] == told[5:7]
    for each in folder.records():
        if (each.dataset, each.prompt) == ("code", 0) and each.case in interrupted:
            assert each.seconds != interrupted[each.case].seconds
    assert len(folder.manifest().sessions) == 2
    _check_facts(folder, engines)


def _check_facts(folder: RunFolder, engines: CaseEngines) -> None:
    manifest, forwards = folder.manifest(), folder.forwards()
    assert manifest.target is not None
    assert manifest.target.num_parameters == engines.engine.loaded.checkpoint.config.num_parameters
    assert [(each.label, each.lookahead) for each in manifest.cases] == [
        ("ar+t0+b1", 0), ("sd2+t0+b1", 2), ("ssd+t0+b1", 8),
    ]  # fmt: skip
    assert {(each.dataset, each.prompt) for each in forwards} == {(d, p) for d in PROMPTS for p in (0, 1)}
    for each in forwards:
        assert set(each.target_seconds) == {1, 3, 9}
        assert set(each.draft_seconds["model"]) == {1, 12}
        assert len(each.agreement["model"]) == len(each.runs) == 12
        assert [rank == 0 for rank in each.ranks["model"]] == each.agreement["model"]
        assert set(each.ranks["model"]) <= set(range(-1, 8))
    assert 0 < sum(sum(each.agreement["model"]) for each in forwards) < 48


def test_agreement_is_the_drafts_own_choice(engines: CaseEngines, tiny_draft: str) -> None:
    """Asked token by token: what the draft alone would write next."""
    from ssd.bench.bare import BareModels

    bare, prompt = BareModels(engines, CASES), PROMPTS["fox"][0]
    tokens = engines.run(CASES[0], [prompt], max_tokens=6, seed=5)[0].tokens
    found = bare.with_agreement(bare.forwards("fox", 0), prompt, tokens).agreement["model"]
    with CaseEngines(
        EngineConfig(model=tiny_draft, device="cpu", dtype="float32"), None, CASES[:1]
    ) as draft_alone:
        text, expected = list(engines.engine.requests.tokenizer(prompt).input_ids), []
        for token in tokens:
            guess = draft_alone.run(CASES[0], [list(text)], max_tokens=2, seed=0)[0].tokens[0]
            expected.append(guess == token)
            text.append(token)
    assert found == expected


def test_another_run_is_refused(tmp_path: Path, tiny_llama: Path, tiny_draft: str) -> None:
    asked = settings(tiny_llama, tiny_draft)
    BenchRun(RunFolder(tmp_path), Manifest(settings=asked, sessions=[SESSION]), CASES, PROMPTS)
    other = Manifest(settings=replace(asked, max_tokens=13), sessions=[SESSION])
    # Nothing was measured yet: what was said wrong may be said right.
    BenchRun(RunFolder(tmp_path), other, CASES, PROMPTS)
    BenchRun(RunFolder(tmp_path), Manifest(settings=asked, sessions=[SESSION]), CASES, PROMPTS)
    RunFolder(tmp_path).add([record(CASES[0], "fox", 0)])
    with pytest.raises(ValueError, match="max_tokens is 12 there and 13 here"):
        BenchRun(RunFolder(tmp_path), other, CASES, PROMPTS)
    # What is no run of ours is not written over.
    theirs = '{"settings": {"peers": []}}'
    (tmp_path / "manifest.json").write_text(theirs)
    with pytest.raises(ValueError, match="holds no run of `ssd bench run`"):
        BenchRun(RunFolder(tmp_path), other, CASES, PROMPTS)
    assert (tmp_path / "manifest.json").read_text() == theirs


def test_going_on_with_other_code_or_elsewhere_is_refused_unless_said(tmp_path: Path) -> None:
    made = write_run(tmp_path, num_prompts=2, cases=["ar", "ssd"])
    asked, (session,) = made.manifest().settings, made.manifest().sessions
    cases = cases_of("ar,ssd", [0.0], [1])
    prompts = {name: ["a", "b"] for name in asked.datasets}

    def begin(now: Provenance, **mixed: bool) -> BenchRun:
        return BenchRun(made, Manifest(settings=asked, sessions=[now]), cases, prompts, **mixed)

    other = replace(session, commit="ba9876543210", versions={"ssd": "0.2"})
    assert begin(other).is_complete, "nothing is left to measure: it may be looked at"
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-1]))
    begin(session)
    with pytest.raises(ValueError, match="commit was 0123456789ab, is ba9876543210; ssd was"):
        begin(other)
    assert not begin(other, mixed=True).is_complete


def test_prompts_without_room_are_refused_before_anything_is_measured(
    tmp_path: Path, engines: CaseEngines, tiny_llama: Path, tiny_draft: str
) -> None:
    folder, asked = RunFolder(tmp_path), settings(tiny_llama, tiny_draft)
    room = engines.engine.loaded.max_model_len
    manifest = Manifest(settings=replace(asked, max_tokens=room - 2), sessions=[SESSION])
    with pytest.raises(ValueError, match="at most 2 fit: raise --max-model-len"):
        BenchRun(folder, manifest, CASES, PROMPTS).go_on(engines, lambda _case, _records: None)
    assert folder.records() == []


def test_turns_rotate_and_batches_are_full() -> None:
    cases = cases_of("ar,sd,ssd", [0.0], [1, 4])
    found = batches(cases, ["a", "b"], 6)
    ones = [batch for batch in found if batch.size == 1]
    assert [(batch.dataset, batch.start) for batch in ones] == [(d, s) for s in range(6) for d in ("a", "b")]
    for dataset in ("a", "b"):
        firsts = [batch.cases[0].mode for batch in ones if batch.dataset == dataset]
        assert sorted(firsts) == ["ar", "ar", "sd", "sd", "ssd", "ssd"]
        follows = Counter(
            pair for batch in ones if batch.dataset == dataset for pair in pairwise(batch.cases)
        )
        assert len(follows) == 6, "each follows each other"
        assert set(follows.values()) == {2}
    assert [(batch.dataset, batch.start) for batch in found if batch.size == 4] == [("a", 0), ("b", 0)]
    with pytest.raises(ValueError, match="batches of 4 need as many prompts, not 3"):
        batches(cases, ["a"], 3)


def test_the_command_runs_and_then_only_reports(
    tmp_path: Path, tiny_llama: Path, tiny_draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it is interrupted, and says that it goes on."""
    (tmp_path / "fox.jsonl").write_text("\n".join(json.dumps({"text": each}) for each in PROMPTS["fox"]))
    command = [
        "bench", "run", str(tiny_llama), "--draft", tiny_draft, "--device", "cpu", "--dtype", "float32",
        "--deterministic", "--cases", "ar,sd2", "--datasets", str(tmp_path / "fox.jsonl"),
        "--num-prompts", "2", "--max-tokens", "8", "--run", str(tmp_path / "run"),
    ]  # fmt: skip
    go_on = BenchRun.go_on

    def interrupted(run: BenchRun, engines: CaseEngines, on_turn: OnTurn) -> None:
        def end(case: Case, records: Sequence[CaseRecord]) -> None:
            if run.num_done:
                raise KeyboardInterrupt

        go_on(run, engines, end)

    with monkeypatch.context() as patch:
        patch.setattr(BenchRun, "go_on", interrupted)
        ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 130
    assert "2 of 4 texts are kept" in ended.output
    assert "the same command resumes the run" in ended.output
    for _ in range(2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        assert "All 2 texts equal" in done.output
    assert len(RunFolder(tmp_path / "run").records()) == 4
    refused = CliRunner().invoke(app, [*command, "--seed", "1"])
    assert refused.exit_code == 2
    assert "seed is 1000 there and 1 here" in " ".join(refused.output.split())
    for more, said in (
        (["--mode", "sd"], "--mode is set by the cases"),
        (["--max-tokens", "1"], "at least 2"),
    ):
        refused = CliRunner().invoke(app, [*command, *more])
        assert refused.exit_code == 2
        assert said in " ".join(refused.output.split())
