"""A head of some tokens says of them what the whole head says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ssd.attention.inputs import PlainInput
from ssd.config import Precision, RunnerConfig
from ssd.models.arithmetic import arithmetic
from ssd.models.head_tokens import frequent_tokens
from ssd.runtime import loading
from ssd.runtime.loading import load_model
from ssd.runtime.runner import forward
from tests.tiny import tiny_tokenizer, write_checkpoint

ROW = PlainInput([(7 * i) % 390 + 2 for i in range(40)], 0, [0, 1, 2], 9, generated=False)
needs_int8 = pytest.mark.skipif(arithmetic().int8_steps is None, reason="int8 linears need AVX-512")


def config(folder: Path) -> RunnerConfig:
    return RunnerConfig(model=str(folder), device="cpu", dtype="bfloat16", max_model_len=256)


@pytest.mark.parametrize("kind", ["qwen2", "llama-tied"])
@pytest.mark.parametrize("precision", ["model", pytest.param("int8", marks=needs_int8)])
def test_columns_are_the_whole_heads(
    kind: str, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(config(write_checkpoint(kind, tmp_path)), precision=precision)
    tokens = [0, 1, 3, 17, 249, 250, *range(300, 340), 500, 511]
    whole = load_model(settings)
    monkeypatch.setattr(loading, "frequent_tokens", lambda *_: tokens)
    some = load_model(replace(settings, head=len(tokens)))
    assert whole.head_tokens is None
    assert some.head_tokens is not None
    assert some.head_tokens.tolist() == tokens
    expected = forward(whole.runner, [ROW])[:, tokens]
    assert torch.equal(forward(some.runner, [ROW]), expected)


def test_frequent_tokens_are_the_lowest_ids_and_all_special_ones() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|pause|>"]})
    tokenizer.add_tokens(["addedword"])
    added = tokenizer.convert_tokens_to_ids(["<|pause|>", "addedword"])
    assert frequent_tokens(tokenizer, 512, 50) == [*range(48), *sorted(added)]


def test_frequent_tokens_end_with_the_vocabulary() -> None:
    tokenizer = tiny_tokenizer()
    assert frequent_tokens(tokenizer, 512, 10_000) == list(range(512))
    # The draft's vocabulary may be shorter than the tokenizer's.
    tokenizer.add_tokens(["addedword"])
    assert max(frequent_tokens(tokenizer, 300, 100)) == 99
    with pytest.raises(ValueError, match="special"):
        frequent_tokens(tokenizer, 512, 2)
