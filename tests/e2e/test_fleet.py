"""A hostile key holder beside our engine on one draft. At full size: python -m benchmarks.real_pool."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from benchmarks.real_pool import DRAFTS, HOSTILE, Pool, flooding
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
