"""`ssd serve --engine vllm` with the real vLLM, as clients see it: the official openai client, one server.

Answers, keys, counters; a draft that is killed or stands still under streams; a hostile request beside them;
an end in the middle of streams or of the start. Needs vLLM beside this package, and SmolLM2 as a folder
(SSD_TEST_MODELS/folders/smollm2).
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx")
from tests.alive import is_alive
from tests.server.process import until
from tests.vllm.served import Served, ask, is_healthy, serving, smollm2, start
from tests.vllm.streams import Seen, Streams, Undisturbed

pytestmark = [pytest.mark.vllm, pytest.mark.models, pytest.mark.timeout(900)]

CLIENTS, TOKENS = 4, 24
HUNG_SECONDS = 10.0
"""Between two pieces of a text: far less than the draft is away, far more than a busy machine needs."""
AWAY_SECONDS = 15.0
HOSTILE: dict[str, Any] = {
    "stop_token_ids": list(range(40_000)),
    "bad_words": ["crab crab crab " * 300] * 100,
}
"""Values that vLLM takes, and that are more than a draft is told."""


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


@pytest.fixture(scope="module")
def usual(server: Served) -> Undisturbed:
    return Undisturbed.of(server, num_tokens=TOKENS, clients=CLIENTS)


def streams_while(server: Served, usual: Undisturbed, away: float) -> tuple[Seen, int]:
    """The draft stands still for `away` seconds under streams, or is killed: 0."""
    streams, pid, engines = _streams(server), server.draft_pid(), server.engine_pids()
    try:
        time.sleep(1.0)
        os.kill(pid, signal.SIGSTOP if away else signal.SIGKILL)
        time.sleep(away)
        if away:
            os.kill(pid, signal.SIGCONT)
        else:
            until(lambda: not is_alive(pid))
            assert server.await_draft(120.0)
        hits = server.counted("ssd_draft_frames")
        until(lambda: server.counted("ssd_draft_frames") > hits, seconds=60, what="a word of the draft")
    finally:
        seen = streams.stop()
    assert not seen.lost
    assert not usual.changed(seen)
    assert len(seen.texts) >= CLIENTS
    assert server.engine_pids() == engines != []
    return seen, pid


def _streams(server: Served) -> Streams:
    return Streams(server, num_tokens=TOKENS, clients=CLIENTS)


def test_a_killed_draft_changes_no_stream_and_comes_back(server: Served, usual: Undisturbed) -> None:
    _, pid = streams_while(server, usual, away=0.0)
    assert server.draft_pid() != pid


def test_no_stream_waits_for_a_frozen_draft(server: Served, usual: Undisturbed) -> None:
    seen, pid = streams_while(server, usual, away=AWAY_SECONDS)
    assert server.draft_pid() == pid
    assert seen.longest_gap() < HUNG_SECONDS


def test_hostile_fields_of_one_request_cost_the_others_no_draft(server: Served, usual: Undisturbed) -> None:
    names = ("draft_connects", "draft_losses", "draft_moved", "draft_resyncs")
    before = [server.counted(f"ssd_{name}") for name in names]
    streams = Streams(server, num_tokens=TOKENS, clients=CLIENTS, rounds=1)
    for field, value in HOSTILE.items():
        ask(server, extra_body={field: value, "ignore_eos": True})
    assert not usual.changed(streams.join())
    assert [server.counted(f"ssd_{name}") for name in names] == before


def end(server: Served) -> None:
    """Asked to end, the server ends well and leaves nothing."""
    server.look_at_memory()
    server.look()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0
    assert not server.until_nothing_is_left()
    assert len(server.seen) > 1


def test_an_end_in_the_middle_of_streams_leaves_nothing(server: Served) -> None:
    """The last test of this server."""
    streams = Streams(server, num_tokens=128)
    time.sleep(1.0)
    end(server)
    streams.stop()


def test_an_end_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    """While vLLM is imported: the draft runs by then."""
    model = smollm2()
    server = start(tmp_path, model, model)
    try:
        until(lambda: len(server.children) > 1)
        time.sleep(3.0)
        assert not is_healthy(server)
        end(server)
    finally:
        server.process.kill()
        server.process.wait()
