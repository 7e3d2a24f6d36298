"""What campaigns.e2e.fleet counts and judges by, and a hostile key holder beside one of its servers.

The whole of it needs two vLLM servers, and minutes: it is run by command.
"""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from campaigns.e2e.fleet import DRAFTS, HOSTILE, SERVERS, WEIGHTS, Pool, flooding, shares_found, wrong_shares
from ssd import LLM, SamplingParams
from tests.server.process import until
from tests.tiny import write_checkpoint

PROMPTS = ["Once upon a time", "def add(a, b):"]


def test_a_hostile_key_holder_takes_rows_and_no_token(tmp_path: Path) -> None:
    model = write_checkpoint("medium", tmp_path / "model")
    common: dict[str, Any] = {"device": "cpu", "dtype": "float32", "show_progress": False}
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(str(model), **common) as plain:
        expected = plain.generate(PROMPTS, params, use_tqdm=False)
    pool = Pool(tmp_path / "keys", model)
    try:
        pool.start(DRAFTS[0])
        [told] = pool.told
        draft = {"model": pool.addresses, "keys": pool.keys_of("ours")}
        with flooding(pool, 50.0) as hostile, LLM(str(model), mode="ssd", draft=draft, **common) as llm:
            until(lambda: told[-1]["rows"][HOSTILE] > 0, what="a row of the hostile tenant")
            until(lambda: len(hostile.lines[-1]["lies"]) > 5, what="lies")
            # No hits: on a busy machine so small a target is done before its draft.
            while not told[-1]["rows"]["ours"]:
                found = llm.generate(PROMPTS, params, use_tqdm=False)
                assert [each.outputs for each in found] == [each.outputs for each in expected]
            pool.look()
        assert not pool.fallen
        assert {name for name, rows in told[-1]["rows"].items() if rows} == {"ours", HOSTILE}
    finally:
        pool.close()


def told_by(rows: dict[str, int], wanting: dict[str, int], turns: int = 10) -> list[dict[str, Any]]:
    """Two lines of a draft, eleven seconds apart."""
    nothing = dict.fromkeys(WEIGHTS, 0)
    first = {"at": 0.0, "turns": 0, "rows": nothing, "wanting": nothing}
    return [first, {"at": 11.0, "turns": turns, "rows": rows, "wanting": wanting}]


FAIR = {"ours": 100, "vllm-one": 104, "vllm-two": 196, HOSTILE: 90}
ALL_WANT = dict.fromkeys(SERVERS, 10) | {HOSTILE: 0}


def test_shares_are_those_of_windows_in_which_all_want_more() -> None:
    sated = told_by({**FAIR, "ours": 4}, {**ALL_WANT, "ours": 1})
    found = shares_found([told_by(FAIR, ALL_WANT), sated, []], 10.0)
    assert found["windows"] == 1
    assert found["rows"] == FAIR
    assert found["off"] == 0.04
    assert found["hostile_share"] == 0.1837
    assert not [*wrong_shares(found)]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (told_by(FAIR, {**ALL_WANT, "ours": 1}), "at no time"),
        (told_by({**FAIR, "ours": 130}, ALL_WANT), "off by 21%"),
        (told_by({**FAIR, HOSTILE: 120}, ALL_WANT), "hostile tenant had 23%"),
        (told_by({**FAIR, HOSTILE: 0}, ALL_WANT), "hostile tenant had 0%"),
    ],
)
def test_shares_that_are_wrong_or_unknown_are_told(told: list[dict[str, Any]], words: str) -> None:
    [said] = wrong_shares(shares_found([told], 10.0))
    assert words in said
