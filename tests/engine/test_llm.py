"""The front door for scripts, with a tiny real model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ssd import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path) -> LLM:
    return LLM(str(tiny_llama), dtype="float32", device="cpu", deterministic=True, show_progress=False)


def tokens_of(llm: LLM, prompt: list[int], params: SamplingParams) -> list[tuple[int, ...]]:
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    return [completion.token_ids for completion in output.outputs]


def test_outputs_come_in_the_order_of_prompts(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (9, 1, 5)]
    outputs = llm.generate(["The quick", "def", "Once upon"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5]
    assert [output.prompt for output in outputs] == ["The quick", "def", "Once upon"]


def test_chat_applies_the_template(llm: LLM) -> None:
    by_hand = llm.generate("user: The fox\nassistant: ", GREEDY, use_tqdm=False)[0]
    by_chat = llm.chat([{"role": "user", "content": "The fox"}], GREEDY, use_tqdm=False)[0]
    assert by_chat.outputs == by_hand.outputs
    assert by_chat.prompt_token_ids == by_hand.prompt_token_ids


def test_a_missing_seed_is_drawn_from_the_configured_one(tiny_llama: Path) -> None:
    drawn = []
    for _ in range(2):
        llm = LLM(str(tiny_llama), dtype="float32", device="cpu", seed=3, show_progress=False)
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        drawn.append([tokens_of(llm, [7, 8, 9], params) for _ in range(2)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_logprobs_equal_transformers(llm: LLM, tiny_llama: Path) -> None:
    prompt = llm.tokenizer("The quick brown fox jumps over the lazy dog. Once upon a time").input_ids
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    output = llm.generate(prompt, params, use_tqdm=False)[0]
    completion = output.outputs[0]
    reference = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.inference_mode():
        expected = reference(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].log_softmax(-1)
    scored = [*(output.prompt_logprobs or ())[1:], *(completion.logprobs or ())]
    tokens = [*prompt[1:], *completion.token_ids]
    assert [entry.token for entry in scored if entry] == tokens
    for position, entry in enumerate(scored):
        assert entry is not None
        row = expected[position]
        assert entry.logprob == pytest.approx(float(row[entry.token]), abs=1e-4)
        assert entry.rank == 1 + int((row > row[entry.token]).sum())
        num_top = 2 if position < len(prompt) - 1 else 3
        assert [token for token, _ in entry.top] == row.topk(num_top).indices.tolist()
    assert (output.prompt_logprobs or ())[0] is None


def test_stops_cleanly_at_the_models_length(llm: LLM) -> None:
    prompt = [5] * (llm.max_model_len - 3)
    output = llm.generate(
        prompt, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True), use_tqdm=False
    )
    assert len(output[0].outputs[0].token_ids) == 3
    assert output[0].outputs[0].finish_reason == "length"


def test_requests_that_never_fit_are_refused_and_leave_nothing(llm: LLM) -> None:
    for prompt in ([5] * llm.max_model_len, [], [10_000_000]):
        with pytest.raises(ValueError, match=r"prompt|token id"):
            llm.generate([[5, 6], prompt], GREEDY, use_tqdm=False)
    assert len(llm.generate([5, 6], GREEDY, use_tqdm=False)) == 1


def test_stream_joins_to_the_output_and_can_be_left(llm: LLM) -> None:
    whole = llm.generate("The quick", GREEDY, use_tqdm=False)[0].outputs[0]
    parts = list(llm.stream("The quick", GREEDY))
    assert "".join(part.text for part in parts) == whole.text
    assert parts[-1].finish_reason == "length"
    for _ in llm.stream("The quick", GREEDY):
        break
    assert not llm._engine.core.has_work


def test_streams_and_answers_that_run_at_once_each_get_their_own(llm: LLM) -> None:
    prompts = ["The quick brown", "def fibonacci(n):", "Once upon a time"]
    expected = [output.outputs[0].text for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    streams = [llm.stream(prompt, GREEDY) for prompt in prompts[:2]]
    texts = ["", ""]
    for number in (0, 1, 1, 0):
        texts[number] += next(streams[number]).text
    # An answer in the middle takes nothing from the streams.
    assert llm.generate(prompts[2], GREEDY, use_tqdm=False)[0].outputs[0].text == expected[2]
    for number in (1, 0):
        texts[number] += "".join(part.text for part in streams[number])
    assert texts == expected[:2]


def test_the_reported_seed_repeats_a_request(llm: LLM) -> None:
    first = llm.generate("The quick", SamplingParams(max_tokens=8), use_tqdm=False)[0]
    again = llm.generate("The quick", SamplingParams(max_tokens=8, seed=first.seed), use_tqdm=False)[0]
    assert again.outputs == first.outputs


@pytest.mark.parametrize(
    "prompts", [None, 5, {"prompt": "hi"}, [{"prompt_token_ids": [1]}], [["a", "b"]], "bad \ud800 text"]
)
def test_wrong_prompts_are_refused_in_words(llm: LLM, prompts: Any) -> None:
    with pytest.raises(ValueError, match=r"prompt"):
        llm.generate(prompts, GREEDY, use_tqdm=False)


def test_wrong_params_and_messages_are_refused_in_words(llm: LLM) -> None:
    with pytest.raises(ValueError, match="SamplingParams"):
        llm.generate(["a"], [{"temperature": 0}], use_tqdm=False)  # type: ignore[list-item]
    for messages in ("Say hi", [{"content": "no role"}]):
        with pytest.raises(ValueError, match="a conversation is a list"):
            llm.chat(messages, GREEDY, use_tqdm=False)  # type: ignore[arg-type]


def test_as_many_params_as_prompts(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 prompts but 1"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)


def test_timings_are_in_order(llm: LLM) -> None:
    timings = llm.generate("The quick", GREEDY, use_tqdm=False)[0].timings
    assert 0 <= timings.queued <= timings.first_token <= timings.total
    assert timings.num_output_tokens == 12
    assert timings.per_output_token is not None
    assert timings.per_output_token > 0
    one = llm.generate("The", SamplingParams(max_tokens=1), use_tqdm=False)[0]
    assert one.timings.per_output_token is None


@pytest.mark.parametrize("text", ["fox", "The quick brown fox"])
def test_a_bad_word_does_not_come_wherever_it_stands(llm: LLM, text: str) -> None:
    """Without a space before it a word has other tokens than with one."""
    *before, last = llm.tokenizer(text, add_special_tokens=False).input_ids
    wanted: dict[str, Any] = {"temperature": 0, "max_tokens": 1, "logit_bias": {last: 100.0}}
    prompt = before or [7]
    assert tokens_of(llm, prompt, SamplingParams(**wanted)) == [(last,)]
    assert tokens_of(llm, prompt, SamplingParams(**wanted, bad_words=["fox"])) != [(last,)]


def test_prefix_cache_is_used_and_reported(llm: LLM) -> None:
    prompt = [9] * 40
    llm.generate(prompt, GREEDY, use_tqdm=False)
    assert llm.generate(prompt, GREEDY, use_tqdm=False)[0].num_cached_tokens == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seq": 3}, "did you mean 'max_num_seqs'"),
        ({"nonsense": 1}, "known settings"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"block_size": True}, "at least 1"),
        ({"decode_tile": 12}, "multiple of 16"),
        ({"cores": (0, 0)}, "each core once"),
        ({"cores": "0,1"}, "each core once"),
        ({"deterministic": "false"}, "true or false"),
        ({"seed": "x"}, "whole number"),
        ({"max_num_batched_tokens": 8}, "fit into a step"),
        ({"max_model_len": 100_000}, "positions end at 512"),
        ({"max_model_len": 400, "num_blocks": 2}, "holds 32 tokens"),
        ({"kv_cache_bytes": 10}, "holds no block"),
        ({"dtype": "int3"}, "bfloat16"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(
    tiny_llama: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(tiny_llama), show_progress=False, **{"device": "cpu", **settings})


def test_an_error_in_the_middle_of_a_step_leaves_a_usable_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssd.engine.detokenizer import Detokenizer

    def fail(*_: object) -> str:
        raise RuntimeError("interrupted")

    expected = llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
    for method in ("add", "flush"):
        with monkeypatch.context() as patch:
            patch.setattr(Detokenizer, method, fail)
            with pytest.raises(RuntimeError, match="interrupted"):
                llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
        assert not llm._engine.core.has_work
    again = llm.generate([[5, 6], [7, 8]], GREEDY, use_tqdm=False)
    assert [output.outputs for output in again] == [output.outputs for output in expected]
