"""A pool of real drafts behind one engine: the AR tokens, while drafts are killed, drained and come back."""

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from campaigns.e2e.pool_strikes import _PATIENCE, delays_of, main
from campaigns.e2e.process_faults import Slow
from ssd import LLM, SamplingParams
from tests.e2e.drafts import Drafts
from tests.e2e.test_ssd import COMMON


def test_tokens_are_the_targets_while_drafts_come_and_go(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small form of `python -m campaigns.e2e.pool_strikes`: drafts drain, are upgraded and are killed."""
    record = tmp_path / "record.jsonl"
    few = ("--large", "1", "--small", "0", "--layers", "1", "--pause", "0.02", "--strikes", "3")
    flags = ("--model", str(target), "--soon", str(_PATIENCE), "--record", str(record))
    monkeypatch.setattr(sys, "argv", ["pool_strikes", *few, *flags])
    assert main() == 0
    assert len(record.read_text().splitlines()) == 3


def test_a_request_may_name_its_draft(target: Path, tmp_path: Path) -> None:
    named = Drafts({"one": target, "two": target}, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, draft="two")
    try:
        with LLM(str(target), mode="ssd", draft={"model": named.addresses}, **COMMON) as llm:
            decoder: Any = llm._engine.core.decoder
            decoder._runner = Slow(decoder._runner)
            _until_ready(llm, 2)
            llm.generate([f"def add{number}(" for number in range(6)], params, use_tqdm=False)
            replicas = decoder.proposer.speculator.client.pool.replicas
            rows = {each.draft_name: each.stats.num_own_rows if each.stats else 0 for each in replicas}
            assert llm.stats.speculation.hits > 0
    finally:
        named.close()
    assert rows["one"] == 0
    assert rows["two"] > 0


def _until_ready(llm: LLM, count: int) -> None:
    deadline = time.monotonic() + 60
    while (draft := llm.stats.draft) is None or draft.num_ready < count:
        assert time.monotonic() < deadline, "a draft is missing"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("hits", "expected"), [((3, 3, 3, 4), (2.0, 1.0)), ((3, 4, 4, 4), (2.0, _PATIENCE))], ids=["hit", "never"]
)
def test_hits_count_from_the_switch_and_those_that_never_come_for_ever(
    hits: tuple[int, ...], expected: tuple[float, float]
) -> None:
    lines = [
        {"at": 10.0 + second, "moved": moved, "hits": count}
        for second, moved, count in zip((0, 1, 2, 3), (1, 1, 2, 2), hits, strict=True)
    ]
    assert delays_of(lines, 10.0, "hits") == expected
