"""Every token equals transformers', in float32.

Greedy equality is checked by teacher forcing: if each of our tokens is transformers'
argmax given the tokens before it, then transformers' greedy decoding is our output.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ssd import LLM, SamplingParams
from tests.tiny import CONFIGS, write_checkpoint

NUM_TOKENS = 64
SENTENCE = (
    "def fibonacci(n):\n    a, b = 0, 1\n    while n > 0:\n        a, b = b, a + b\n"
    "In the year 1969 two people walked on the moon while a third one waited above. "
)


def mixed_prompts(tokenizer: Any, count: int = 20, longest: int = 150) -> list[list[int]]:
    """Prompts of 1 to `longest` tokens that start at different places of a text."""
    ids = tokenizer(SENTENCE * 20).input_ids
    lengths = [1 + (longest - 1) * index // (count - 1) for index in range(count)]
    return [list(ids[7 * index : 7 * index + length]) for index, length in enumerate(lengths)]


def assert_greedy_equal(
    llm: LLM, reference: Any, prompts: list[list[int]], num_tokens: int = NUM_TOKENS
) -> None:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    for prompt, output in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
        tokens = list(output.outputs[0].token_ids)
        assert len(tokens) == num_tokens
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        top = logits.topk(2)
        expected = top.indices[:, 0].tolist()
        gaps = (top.values[:, 0] - top.values[:, 1]).tolist()
        differences = [
            (i, tokens[i], expected[i], gaps[i]) for i in range(num_tokens) if tokens[i] != expected[i]
        ]
        assert not differences, f"(step, ours, theirs, their top-2 gap): {differences}"


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"short", "padded", "medium"}))
def test_tiny_checkpoints_equal_transformers(kind: str, tmp_path: Path) -> None:
    folder = write_checkpoint(kind, tmp_path)
    llm = LLM(str(folder), dtype="float32", device="cpu", show_progress=False, max_num_batched_tokens=100)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert_greedy_equal(llm, reference, mixed_prompts(llm.tokenizer))


def test_sharded_safetensors_equal_transformers(tmp_path: Path) -> None:
    folder = write_checkpoint("qwen2", tmp_path, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    llm = LLM(str(folder), dtype="float32", device="cpu", show_progress=False)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert_greedy_equal(llm, reference, mixed_prompts(llm.tokenizer, count=4))


@pytest.mark.models
@pytest.mark.parametrize(
    ("fixture", "count", "num_tokens"),
    [
        ("smollm2", 3, 32),
        *(pytest.param(name, 20, NUM_TOKENS, marks=pytest.mark.slow) for name in ("smollm2", "qwen_draft")),
    ],
)
def test_gguf_equals_transformers(
    fixture: str, count: int, num_tokens: int, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(fixture)
    llm = LLM(str(path), dtype="float32", device="cpu", show_progress=False, max_model_len=512)
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    assert_greedy_equal(llm, reference, mixed_prompts(llm.tokenizer, count=count), num_tokens)


@pytest.mark.models
def test_known_vector(qwen_target: Path) -> None:
    llm = LLM(str(qwen_target), device="cpu", show_progress=False, max_model_len=512)
    output = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0]
    assert output.outputs[0].token_ids == (11, 1052, 572, 264)
