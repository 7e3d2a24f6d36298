"""Cases around one target: the same tokens from all of them, and records that add up."""

from pathlib import Path

import pytest

from ssd.bench.cases import parse_case
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, EngineConfig
from ssd.models import arithmetic
from ssd.models.arithmetic import Arithmetic
from ssd.runtime import loading
from ssd.sampling import SamplingParams
from tests.bench.conftest import CASES
from tests.tiny import tiny_tokenizer, write_checkpoint

PROMPTS = ["The quick brown fox jumps", "Once upon a time", "def add(a, b):"]
NUM_TOKENS = 24


def test_modes_give_equal_tokens_and_their_own_counts(engines: CaseEngines) -> None:
    found = {
        name: engines.run(CASES[name], PROMPTS[:1], max_tokens=NUM_TOKENS, seed=1)[0]
        for name in ("ar+t0+b1", "ar+allcores+t0+b1", "sd2+t0+b1", "ssd+t0+b1")
    }
    assert len({tuple(record.tokens) for record in found.values()}) == 1
    for record in found.values():
        assert len(record.tokens) == NUM_TOKENS
        assert record.other_load is None or 0 <= record.other_load <= 1
        assert record.rounds + record.accepted == NUM_TOKENS
        assert 0 < record.verify_seconds <= record.step_seconds <= record.seconds
        assert record.round_steps == record.rounds - 1, "the prompt's step is not a round's"
        assert 0 < record.round_seconds < record.verify_seconds
        assert record.target_rows == record.num_prompt + record.rounds - 1 + record.drafted
    plain, in_turns, ahead = (found[name] for name in ("ar+t0+b1", "sd2+t0+b1", "ssd+t0+b1"))
    assert plain.draft_rows == plain.drafted == 0
    assert in_turns.draft_rows == in_turns.drafted + in_turns.num_prompt
    assert ahead.draft_steps > 0
    assert ahead.draft_rows >= ahead.num_prompt


def test_a_batch_runs_together_with_seeds_of_its_own(engines: CaseEngines) -> None:
    together = engines.run(CASES["ar+t0.8+b3"], PROMPTS, max_tokens=NUM_TOKENS, seed=7)
    last = engines.run(CASES["ar+t0.8+b3"], PROMPTS[2:], max_tokens=NUM_TOKENS, seed=9)
    assert together[2].tokens == last[0].tokens
    assert len({each.seconds for each in together}) == 1
    assert sum(each.target_rows for each in together) == sum(
        each.num_prompt + NUM_TOKENS - 1 for each in together
    )


def test_the_decoder_does_not_change_under_a_request(engines: CaseEngines) -> None:
    core = engines.engine.core
    request = engines.engine.requests.request(PROMPTS[0], SamplingParams(max_tokens=2))
    core.add(request)
    with pytest.raises(ValueError, match="cannot change while requests run"):
        core.use(core.decoder)
    core.abort(request.request_id)
    core.use(core.decoder)


def test_devices(engines: CaseEngines) -> None:
    config = engines.config
    assert engines.num_devices(CASES["ar+t0+b1"]) == len(config.cores)
    for name in ("ssd+t0+b1", "ar+allcores+t0+b1"):
        assert engines.num_devices(CASES[name]) == len(config.cores) + len(engines.draft_cores)


def test_prompts_never_come_from_the_cache(engines: CaseEngines) -> None:
    assert not engines.config.enable_prefix_caching
    once, again = (
        engines.run(CASES["ar+t0+b1"], [PROMPTS[0] * 20], max_tokens=2, seed=1)[0] for _ in range(2)
    )
    assert once.target_rows == again.target_rows


@pytest.mark.parametrize(
    ("draft", "case", "said"),
    [
        (None, "ssd", "case ssd needs a draft"),
        ("ipc:///tmp/draft", "ssd", "not an address"),
        ("OTHER", "sd4", "their tokenizers differ"),
        ("OTHER", "ssd", "their tokenizers differ"),
        ("TARGET", "ssd+int8", r"no int8 linears.*use precision 'auto' or 'model'"),
    ],
)
def test_what_cannot_be_had_is_refused_before_weights_are_loaded(
    draft: str | None, case: str, said: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if draft == "OTHER":
        draft = str(write_checkpoint("qwen2", tmp_path))
        tiny_tokenizer(["entirely different words about rivers and trains"]).save_pretrained(tmp_path)
    without_int8 = Arithmetic(bfloat16=False, packs_float32=False, int8_steps=None)
    monkeypatch.setattr(arithmetic, "arithmetic", lambda: without_int8)
    monkeypatch.setattr(loading, "DenseDecoder", lambda *_, **__: pytest.fail("weights were loaded"))
    model = str(tiny_llama)
    config = DraftConfig(model=model if draft == "TARGET" else draft, device="cpu") if draft else None
    with pytest.raises(ValueError, match=said):
        CaseEngines(EngineConfig(model=model, device="cpu"), config, [parse_case(case)])
