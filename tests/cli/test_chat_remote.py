"""A chat with a server, over real HTTP."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from ssd.cli.chat_remote import RemoteBackend
from ssd.cli.chat_talk import AnswerStats
from ssd.cli.main import app
from ssd.sampling import SamplingParams
from tests.cli.fake_openai import FakeOpenAI


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    served = FakeOpenAI()
    yield served
    served.shutdown()


def chat(*arguments: str, typed: str = "Hi\n") -> Result:
    return CliRunner().invoke(app, ["chat", *arguments], input=typed)


@pytest.mark.parametrize("flag", ["--url", "--vllm", "--sglang"])
def test_answers_stream_and_the_conversation_goes_on(server: FakeOpenAI, flag: str) -> None:
    result = chat(flag, server.url, "--metrics", "--system", "Be kind.", typed="Hi\nAgain\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Hello there!") == 2
    assert "parrot on" in result.stdout
    assert "4 tokens" in result.stdout
    assert "hits 50%, 1.50 accepted a round" in result.stdout
    asked = server.requests[1]["messages"]
    assert [message["content"] for message in asked] == ["Be kind.", "Hi", "Hello there!", "Again"]


def test_only_what_was_asked_for_is_sent(server: FakeOpenAI) -> None:
    chat("--url", f"{server.url}/v1/")
    known = {"model", "messages", "stream", "stream_options", "temperature"}
    assert set(server.requests[0]) == known
    chat("--url", server.url, "--top-k", "5", "--max-tokens", "7", "--seed", "3", "--model", "other")
    sent = server.requests[1]
    assert [sent[name] for name in ("top_k", "max_tokens", "seed", "model")] == [5, 7, 3, "other"]


def test_colours_are_asked_for_and_shown(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = chat("--url", server.url)
    coloured = chat("--url", server.url, "--color-origins")
    assert server.requests[1]["return_origins"] is True
    assert "\x1b[32m there" in coloured.stdout
    assert "\x1b[32m there" not in plain.stdout


def test_a_refusal_is_shown_and_the_chat_goes_on(server: FakeOpenAI) -> None:
    result = chat("--url", server.url, typed="refuse\nHi\n")
    assert "the prompt is too long" in result.stdout
    assert "Hello there!" in result.stdout
    assert len(server.requests[0]["messages"]) == 1


def test_api_keys(server: FakeOpenAI) -> None:
    server.script.api_key = "secret"
    assert "wants another API key" in chat("--url", server.url).stdout
    assert "Hello there!" in chat("--url", server.url, "--api-key", "secret").stdout


def test_control_characters_do_not_reach_the_terminal(server: FakeOpenAI) -> None:
    server.script.chunks = [("a\x1b[2Jb\r\x9bc", ["target"])]
    assert "a\\x1b[2Jb\\x0d\\x9bc" in chat("--url", server.url).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:9"), "no answer from http://127.0.0.1:9: is the server running there?"),
        (("--url", "http://a", "--vllm", "http://b"), "exclude each other"),
        (("--ssd", "--url", "http://a"), "exclude each other"),
        (("--vllm", "http://a", "--draft", "d"), "--draft has no meaning with a server"),
        (("--vllm", "http://a", "--color-origins"), "--color-origins has no meaning with vLLM"),
        (("--sglang", "http://a", "--color-origins"), "--color-origins has no meaning with SGLang"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    result = chat(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_modes_are_the_servers_own(server: FakeOpenAI) -> None:
    result = chat("--vllm", server.url, typed="/mode ssd\n")
    assert "start vLLM with another --speculative-config" in result.stdout


def test_an_answer_without_words_is_no_part_of_the_conversation(server: FakeOpenAI) -> None:
    server.script.chunks = []
    chat("--url", server.url, typed="Hi\nAgain\n")
    assert [message["content"] for message in server.requests[1]["messages"]] == ["Again"]


def test_figures_are_those_of_the_last_answer_or_none(server: FakeOpenAI) -> None:
    backend = RemoteBackend("the server", server.url, model=None, api_key=None, params=SamplingParams())
    for tells_usage, expected in ((True, AnswerStats(4, 1.5, 0.5)), (False, AnswerStats())):
        server.script.tells_usage = tells_usage
        assert "".join(piece.text for piece in backend.answer([{"role": "user", "content": "Hi"}]))
        assert backend.usage == expected
    backend.close()
