"""`ssd serve --engine vllm` with the real vLLM, as clients see it: the official openai client, one server.

Needs vLLM beside this package, and SmolLM2 as a folder (SSD_TEST_MODELS/folders/smollm2).
"""

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from benchmarks.served import Served, ask, serving, smollm2
from campaigns.vllm import faults
from campaigns.vllm.endings import end_while_serving
from campaigns.vllm.hostile_request import DISTURBANCES, HOSTILE, measured
from tests.server.process import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = smollm2()
    with serving(tmp_path_factory.mktemp("served"), model, model) as found:
        yield found


def test_who_has_no_key_does_not_come_in(server: Served) -> None:
    import httpx

    for path in ("/v1/models", "/metrics", "/docs", "/openapi.json", "/version"):
        assert httpx.get(f"{server.url}{path}").status_code == 401
    asked = {"model": "served", "prompt": "Once", "max_tokens": 1}
    for path in ("/invocations", "/tokenize", "/v1/completions"):
        assert httpx.post(f"{server.url}{path}", json=asked).status_code == 401
        assert server.http.post(path, json=asked).status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert [model.id for model in server.openai.models.list()] == ["served"]


def test_the_draft_is_used_and_counted(server: Served) -> None:
    names = ("ssd_spec_sessions_opened_total", "ssd_rounds_total", "vllm:generation_tokens_total")
    before = [server.counted(name) for name in names]
    for _ in range(2):
        ask(server, max_tokens=32, extra_body={"ignore_eos": True})
    opened, rounds, tokens = (server.counted(name) - was for name, was in zip(names, before, strict=True))
    assert opened == 2
    assert tokens == 2 * 32
    # Some were drafted, by the model or by the text itself, and taken: fewer verifications than tokens.
    assert server.counted("ssd_spec_decode_num_accepted_tokens_total") > 0
    assert rounds < tokens


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_stream_is_the_whole_answer_in_pieces(server: Served, temperature: float) -> None:
    whole = ask(server, temperature=temperature, seed=5)
    stream = ask(server, temperature=temperature, seed=5, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 24
    assert len(chunks) > 3


def test_logprobs_are_those_of_the_tokens(server: Served) -> None:
    choice = ask(server, logprobs=3).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    for token, chance, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert chance == max(top.values()) == top[token]


def test_a_json_schema_is_kept(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Lyon"]}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = server.openai.chat.completions.create(
        model="served",
        messages=[{"role": "user", "content": "Name a city of France and how many people live there."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema, "strict": True},
        },
        max_tokens=200,
        temperature=0.7,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert found["city"] in ("Paris", "Lyon")
    assert isinstance(found["people"], int)


def test_two_answers_to_one_prompt(server: Served) -> None:
    answers = [ask(server, n=2, temperature=1, seed=4) for _ in range(2)]
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert len(texts[0]) == 2
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_stop_strings_end_a_text(server: Served) -> None:
    whole = ask(server).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    choice = ask(server, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == whole[: whole.index(stop)]


def test_an_abort_leaves_nothing_behind(server: Served) -> None:
    for _ in range(3):
        stream = ask(server, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    until(lambda: server.counted("vllm:num_requests_running") == 0)
    ask(server)
    assert server.counted("ssd_spec_sessions") <= 1  # The last one: it hears of an end with the next step.


def test_hostile_fields_of_one_request_cost_the_others_no_draft(server: Served) -> None:
    """The small form of `python -m campaigns.vllm.hostile_request`."""
    found = measured(server, HOSTILE[:1], rounds=1, num_tokens=12)
    assert found["in_hostile_runs"] == dict.fromkeys(DISTURBANCES, 0)


def test_neither_kills_nor_freezes_of_the_draft_harm(server: Served, tmp_path: Path) -> None:
    """The small form of `python -m campaigns.vllm.faults`."""
    model, record = smollm2(), tmp_path / "record"
    options = ("--target", model, "--draft", model, "--record", record, "--kills", 2, "--freezes", 1)
    sizes = ("--endings", 0, "--tokens", 24, "--clients", 4, "--slow-draft")
    # With this seed the draft stands still for 3 s.
    arguments = faults.parsed([str(each) for each in (*options, *sizes, "--seed", 11)])
    code = faults.run(arguments, lambda *_: nullcontext(server))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert code == 0, [line["wrong"] for line in lines]
    assert [line["case"] for line in lines] == ["undisturbed", "freeze 0", "kill 0", "kill 1"]
    assert [line["idle"] for line in lines[1:]] == [False, False, True]
    for line in lines[1:]:
        assert line["equal"] == line["requests"] > 0


def test_an_end_in_the_middle_of_streams_leaves_nothing(server: Served) -> None:
    """The last test of this server."""
    found = end_while_serving(server, signal.SIGTERM, seconds=1.0)
    assert not found["wrong"]
    assert found["healthy"]
    assert found["processes"] > 1
