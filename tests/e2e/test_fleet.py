"""What campaigns.e2e.fleet counts and judges by: rows by tenant, as drafts tell them, over windows of want.

The whole of it needs two vLLM servers, and minutes: it is run by command.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from campaigns.e2e.fleet import DRAFTS, WEIGHTS, Pool, shares_found, wrong_shares
from ssd import LLM, SamplingParams
from tests.server.process import until
from tests.tiny import write_checkpoint


def test_drafts_of_the_pool_tell_whom_they_computed_for(tmp_path: Path) -> None:
    model = write_checkpoint("medium", tmp_path / "model")
    pool = Pool(tmp_path / "keys", model)
    try:
        pool.start(DRAFTS[0])
        draft = {"model": pool.addresses, "keys": pool.keys_of("ours")}
        common: dict[str, Any] = {"device": "cpu", "dtype": "float32", "show_progress": False}
        with LLM(str(model), mode="ssd", draft=draft, **common) as llm:
            params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
            llm.generate("Once upon a time", params, use_tqdm=False)
            [told] = pool.told
            until(lambda: told[-1]["rows"]["ours"] > 0, what="a row")
        assert {name for name, rows in told[-1]["rows"].items() if rows} == {"ours"}
    finally:
        pool.close()


def told_by(rows: dict[str, int], wanting: dict[str, int], turns: int = 10) -> list[dict[str, Any]]:
    """Two lines of a draft, eleven seconds apart."""
    nothing = dict.fromkeys(WEIGHTS, 0)
    first = {"at": 0.0, "turns": 0, "rows": nothing, "wanting": nothing}
    return [first, {"at": 11.0, "turns": turns, "rows": rows, "wanting": wanting}]


FAIR = {"ours": 100, "vllm-one": 104, "vllm-two": 196}
ALL_WANT = dict.fromkeys(WEIGHTS, 10)


def test_shares_are_those_of_windows_in_which_all_want_more() -> None:
    sated = told_by({**FAIR, "ours": 4}, {**ALL_WANT, "ours": 1})
    found = shares_found([told_by(FAIR, ALL_WANT), sated, []], 10.0)
    assert found["windows"] == 1
    assert found["rows"] == FAIR
    assert found["off"] == 0.04
    assert not [*wrong_shares(found)]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (told_by(FAIR, {**ALL_WANT, "ours": 1}), "at no time"),
        (told_by({**FAIR, "ours": 130}, ALL_WANT), "off by 21%"),
    ],
)
def test_shares_that_are_wrong_or_unknown_are_told(told: list[dict[str, Any]], words: str) -> None:
    [said] = wrong_shares(shares_found([told], 10.0))
    assert words in said
