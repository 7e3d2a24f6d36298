"""/v1/chat/completions over HTTP."""

from typing import Any

from ssd import LLM, SamplingParams
from tests.server.process import ServerProcess

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The quick"}]


def test_an_answer_is_the_engines(server: ServerProcess, llm: LLM) -> None:
    answer = server.openai.chat.completions.create(model="tiny", messages=MESSAGES, seed=2, max_tokens=10)
    expected = llm.chat(MESSAGES, SamplingParams(seed=2, max_tokens=10), use_tqdm=False)[0]
    assert answer.choices[0].message.content == expected.outputs[0].text
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)


def text_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_parts_of_text_are_joined_and_developer_is_system(server: ServerProcess) -> None:
    parts: Any = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        {"role": "user", "content": [text_part("The quick")]},
    ]
    answers = [
        server.openai.chat.completions.create(model="tiny", messages=each, temperature=0, max_tokens=8)
        for each in (MESSAGES, parts)
    ]
    assert answers[0].choices == answers[1].choices
    assert answers[0].usage is not None
    assert answers[1].usage is not None
    assert answers[0].usage.prompt_tokens == answers[1].usage.prompt_tokens


def test_logprobs_have_tokens_bytes_and_alternatives(server: ServerProcess, llm: LLM) -> None:
    answer = server.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_completion_tokens=8, logprobs=True, top_logprobs=2
    )
    expected = llm.chat(MESSAGES, SamplingParams(temperature=0, max_tokens=8, logprobs=2), use_tqdm=False)[0]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    entries = expected.outputs[0].logprobs or ()
    assert [each.logprob for each in logprobs.content] == [each.logprob for each in entries]
    for entry, own in zip(logprobs.content, entries, strict=True):
        assert [each.logprob for each in entry.top_logprobs] == [logprob for _token, logprob in own.top]
        assert entry.bytes is not None
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    whole = b"".join(bytes(each.bytes or ()) for each in logprobs.content).decode(errors="replace")
    assert whole == llm.tokenizer.decode(list(expected.outputs[0].token_ids))


def test_without_max_tokens_the_context_is_the_limit(server: ServerProcess) -> None:
    answer = server.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 512


def test_several_answers(server: ServerProcess) -> None:
    answer = server.openai.chat.completions.create(model="tiny", messages=MESSAGES, seed=1, max_tokens=8, n=3)
    assert [each.index for each in answer.choices] == [0, 1, 2]
    assert len({each.message.content for each in answer.choices}) == 3


def test_a_chat_template_that_loops_is_refused(forcing: ServerProcess) -> None:
    """It froze the server for good. Others are answered meanwhile, and SIGTERM is heard (at the end)."""
    messages = [{"role": "user", "content": "for ever"}]
    answer = forcing.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 400
    assert "the chat template refuses this: it takes more than 2 s" in answer.json()["error"]["message"]
    messages = [{"role": "user", "content": "once"}]
    answer = forcing.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200
