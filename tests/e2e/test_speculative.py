"""AR = SD, token for token, whatever the draft is worth."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from ssd import LLM, SamplingParams
from ssd.attention.batch import Batch
from ssd.attention.inputs import SequenceInput
from ssd.engine.core import EngineCore
from ssd.engine.outputs import SpeculationStats
from tests.tiny import write_checkpoint

PROMPTS = [
    "The quick brown fox jumps over",
    "def add(a, b):\n    return a + b\n",
    "Once upon a time there was a small model that wrote, and a large one that read. " * 3,
    "🙂",
]


def mixed_params(max_tokens: int) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=3, max_tokens=max_tokens, repetition_penalty=1.2, top_p=0.9),
        SamplingParams(temperature=1.0, seed=4, max_tokens=max_tokens, logprobs=2, frequency_penalty=0.4),
        SamplingParams(temperature=1.0, seed=5, max_tokens=max_tokens, n=3, min_tokens=5, stop=["e", "a b"]),
    ]


def outputs(model: Path, params: list[SamplingParams], **settings: Any) -> list[Any]:
    llm = LLM(str(model), device="cpu", deterministic=True, show_progress=False, **settings)
    found = llm.generate(PROMPTS, params, use_tqdm=False)
    core: EngineCore = llm._engine.core
    core.check_integrity()
    assert core._blocks.usage == 0
    drafter = getattr(core._decoder.proposer, "_drafter", None)
    if drafter is not None:
        drafter.check_integrity()
        assert drafter._blocks.usage == 0
    return [output.outputs for output in found]


@pytest.fixture(scope="module")
def plain(target: Path) -> dict[str, list[Any]]:
    """What mode ar writes, by dtype."""
    return {dtype: outputs(target, mixed_params(24), dtype=dtype) for dtype in ("bfloat16", "float32")}


@pytest.mark.parametrize(
    ("draft", "dtype", "settings"),
    [
        *itertools.product(("itself", "cut", "another", "padded"), ("bfloat16", "float32"), ({},)),
        *itertools.product(
            ("itself", "cut"), ("bfloat16",), ({"max_num_seqs": 1}, {"num_blocks": 14, "max_model_len": 200})
        ),
    ],
)
def test_same_tokens_with_any_draft(
    target: Path,
    drafts: dict[str, Path],
    plain: dict[str, list[Any]],
    draft: str,
    dtype: str,
    settings: dict[str, int],
) -> None:
    for lookahead in (1, 5):
        drafting = {"mode": "sd", "draft": str(drafts[draft]), "lookahead": lookahead}
        assert outputs(target, mixed_params(24), dtype=dtype, **drafting, **settings) == plain[dtype]


def test_a_perfect_draft_takes_a_round_for_each_lookahead(target: Path) -> None:
    """Otherwise equal tokens could mean that nothing was ever drafted."""
    llm = LLM(
        str(target), device="cpu", dtype="float32", deterministic=False, show_progress=False,
        mode="sd", draft={"model": str(target), "precision": "model"}, lookahead=4,
    )  # fmt: skip
    runner: Any = llm._engine.core.decoder._runner
    calls = []
    batch = runner.batch

    def counted(rows: list[SequenceInput]) -> Batch:
        calls.append(len(rows[0].tokens))
        return batch(rows)  # type: ignore[no-any-return]

    runner.batch = counted
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=21, ignore_eos=True)
    output = llm.generate("The quick brown", params, use_tqdm=False)[0].outputs[0]
    assert calls[1:] == [5, 5, 5, 5]
    assert output.speculation == SpeculationStats(rounds=5, drafted=16, accepted=16)


def test_a_draft_with_a_short_context_declines(target: Path, tmp_path: Path) -> None:
    params = mixed_params(60)
    folder = write_checkpoint("short", tmp_path)
    drafting = {"mode": "sd", "draft": str(folder), "lookahead": 3}
    assert outputs(target, params, dtype="float32", **drafting) == outputs(target, params, dtype="float32")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "sd"}, "needs a draft"),
        ({"draft": "x"}, "mode is 'ar'"),
        ({"mode": "warp"}, "use one of ar, sd"),
        ({"mode": "sd", "draft": "x", "lookahead": 0}, "between 1 and 16"),
    ],
)
def test_wrong_drafting_settings_are_refused(target: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(target), show_progress=False, **settings)


def test_nothing_is_guessed_beyond_the_end_of_a_text(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tokens the first comes with the prompt, and the last is the target's own."""
    # With bfloat16 a near-tie may be guessed wrong, and guessed anew.
    # So may a draft in int8, which `auto` chooses on some CPUs.
    draft = {"model": str(target), "precision": "model"}
    settings: Any = {"draft": draft, "mode": "sd", "lookahead": 4, "deterministic": True}
    with LLM(str(target), device="cpu", dtype="float32", show_progress=False, **settings) as llm:
        drafter: Any = llm._engine.core._decoder.proposer._drafter  # type: ignore[attr-defined]
        batch, num_rows = drafter._runner.batch, list[int]()

        def counted(rows: list[SequenceInput]) -> Batch:
            num_rows.append(len(rows))
            return batch(rows)  # type: ignore[no-any-return]

        monkeypatch.setattr(drafter._runner, "batch", counted)
        for max_tokens, expected in ((2, 0), (3, 1), (4, 2), (7, 4)):
            num_rows.clear()
            params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=3)
            found = llm.generate(PROMPTS[0], params, use_tqdm=False)[0].outputs[0]
            assert len(found.token_ids) == max_tokens
            assert len(found.logprobs or ()) == max_tokens
            assert len(num_rows) == expected
