"""A pool of real drafts behind one engine."""

import time
from pathlib import Path
from typing import Any

from campaigns.e2e.process_faults import Slow
from ssd import LLM, SamplingParams
from tests.e2e.drafts import Drafts
from tests.e2e.test_ssd import COMMON


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
