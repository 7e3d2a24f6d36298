"""/v1/completions over HTTP: the engine's own outputs, in OpenAI's shapes."""

from typing import Any

import pytest

from ssd import LLM, SamplingParams
from tests.server.process import ServerProcess

PROMPT = "The quick brown fox"


def expected(llm: LLM, prompt: Any = PROMPT, **params: Any) -> list[str]:
    output = llm.generate([prompt], SamplingParams(**params), use_tqdm=False)[0]
    return [each.text for each in output.outputs]


def test_text_is_the_engines(server: ServerProcess, llm: LLM) -> None:
    answer = server.openai.completions.create(model="tiny", prompt=PROMPT, seed=3, max_tokens=12)
    assert [each.text for each in answer.choices] == expected(llm, seed=3, max_tokens=12)
    assert answer.object == "text_completion"
    assert answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    usual = server.openai.completions.create(model="tiny", prompt=PROMPT, seed=4)
    assert usual.choices[0].text == expected(llm, seed=4, temperature=1.0, max_tokens=16)[0]


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1.3},
    "top-p": {"top_p": 0.3},
    "top-k": {"top_k": 5},
    "min-p": {"min_p": 0.9},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "bias": {"logit_bias": {"40": 100.0}},
    "bad words": {"bad_words": ["time", "one"]},
    "stop token": {"stop_token_ids": list(range(50, 114))},
    "least tokens": {"min_tokens": 8, "stop_token_ids": list(range(50, 114))},
    "special": {"skip_special_tokens": False, "ignore_eos": True, "logit_bias": {"1": 5.0}},
    "n": {"n": 3},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_sampling_parameter_arrives(server: ServerProcess, llm: LLM, name: str) -> None:
    """The same text as with SamplingParams, and another one than without."""
    settings = SETTINGS[name]
    body = {"prompt": PROMPT, "max_tokens": 16, "seed": 5, **settings}
    texts = [each["text"] for each in server.http.post("/v1/completions", json=body).json()["choices"]]
    own = dict(settings)
    if "logit_bias" in own:
        own["logit_bias"] = {int(token): bias for token, bias in own["logit_bias"].items()}
    assert texts == expected(llm, seed=5, max_tokens=16, **own)
    assert texts != expected(llm, seed=5, max_tokens=16)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text(server: ServerProcess, llm: LLM, include: bool) -> None:
    text = expected(llm, temperature=0, max_tokens=40)[0]
    stop = text[10:13]
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 40, "stop": stop}
    choice = server.http.post("/v1/completions", json={**body, "include_stop_str_in_output": include}).json()[
        "choices"
    ][0]
    cut = text.index(stop) + (len(stop) if include else 0)
    assert choice["text"] == text[:cut]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == stop


def test_prompts_come_in_four_forms(server: ServerProcess, llm: LLM) -> None:
    ids = llm.tokenizer(PROMPT).input_ids
    body = {"temperature": 0, "max_tokens": 6, "n": 2}
    forms = [PROMPT, [PROMPT], ids, [ids], [PROMPT, ids, "def add("]]
    answers = [server.http.post("/v1/completions", json={**body, "prompt": each}).json() for each in forms]
    first = answers[0]["choices"][0]["text"]
    for answer in answers[:4]:
        assert [each["text"] for each in answer["choices"]] == [first] * 2
    assert [each["index"] for each in answers[4]["choices"]] == list(range(6))
    assert [each["text"] for each in answers[4]["choices"][:4]] == [first] * 4
    assert answers[4]["usage"]["prompt_tokens"] == 2 * len(ids) + len(llm.tokenizer("def add(").input_ids)


def test_echo_with_logprobs_scores_the_prompt(server: ServerProcess, llm: LLM) -> None:
    answer = server.openai.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=4, echo=True, logprobs=2
    )
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=2)
    output = llm.generate(PROMPT, params, use_tqdm=False)[0]
    choice = answer.choices[0]
    assert choice.text == PROMPT + output.outputs[0].text
    found = choice.logprobs
    assert found is not None
    entries = [*(output.prompt_logprobs or ()), *(output.outputs[0].logprobs or ())]
    assert found.token_logprobs == [None if each is None else each.logprob for each in entries]
    assert found.top_logprobs is not None
    assert [each is None for each in found.top_logprobs] == [True] + [False] * (len(entries) - 1)
    assert all(2 <= len(each) <= 3 for each in found.top_logprobs[1:])
    assert found.text_offset is not None
    assert found.tokens is not None
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if "\ufffd" in token:
            break  # Part of a character: from here on the text is shorter than its tokens.
        assert choice.text[offset : offset + len(token)] == token


def test_echo_with_no_alternatives_scores_the_prompt_too(server: ServerProcess, llm: LLM) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4, "ignore_eos": True, "echo": True}
    answers = [
        server.http.post("/v1/completions", json={**body, "logprobs": count}).json() for count in (0, 1)
    ]
    none, one = (each["choices"][0]["logprobs"] for each in answers)
    assert none["tokens"] == one["tokens"]
    assert none["token_logprobs"] == one["token_logprobs"]
    assert len(none["tokens"]) == len(llm.tokenizer(PROMPT).input_ids) + 4


def test_prompt_logprobs_have_vllms_shape(server: ServerProcess, llm: LLM) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 1, "prompt_logprobs": 1}
    entries = server.http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    ids = llm.tokenizer(PROMPT).input_ids
    assert entries[0] is None
    assert len(entries) == len(ids)
    for token, entry in zip(ids[1:], entries[1:], strict=True):
        assert set(entry[str(token)]) == {"logprob", "rank", "decoded_token"}
        assert any(each["rank"] == 1 for each in entry.values())


def test_usage_tells_of_speculation_and_time(server: ServerProcess) -> None:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    usage = server.http.post("/v1/completions", json=body).json()["usage"]["speculation"]
    assert usage["rounds"] == 8
    assert usage["accepted"] == usage["drafted"] == usage["hits"] == 0
    assert usage["misses"] == {"late": 0, "unknown": 0, "unheard": 0}
    timings = usage["timings"]
    after_the_first = timings["total"] - timings["first_token"]
    assert timings["per_output_token"] == pytest.approx(after_the_first / 7, rel=0.01)
    assert 0 <= timings["queued"] <= timings["first_token"] <= timings["total"] < 60
