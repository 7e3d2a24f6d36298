"""benchmarks/chat.py: the well-known flags as settings of `ssd chat`."""

import pytest

from benchmarks.chat import arguments_of_chat

COMMON = ["--temperature", "0.0", "--max-tokens", "2048"]


def pairs(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_the_draft_that_works_ahead() -> None:
    line = "--ssd --spec --async --k 7 --f 2 --gpus 2 --backup jit --x 0.5 --b 4"
    assert pairs(arguments_of_chat(line.split())) == {
        **pairs(COMMON),
        "--model": "meta-llama/Llama-3.1-70B-Instruct",
        "--max-num-seqs": "4",
        "--draft": "meta-llama/Llama-3.2-1B-Instruct",
        "--mode": "ssd",
        "--lookahead": "7",
        "--draft-children": "2",
        "--backup": "jit",
        "--acceptance": "ratio",
        "--saguaro": "0.5",
        "--device": "cuda:0",
        "--draft-device": "cuda:1",
    }


def test_families_and_modes() -> None:
    alone = arguments_of_chat(["--ssd", "--qwen", "--size", "4", "--eager"])
    assert pairs(alone) == {**pairs(COMMON), "--model": "Qwen/Qwen3-4B"}
    in_turns = pairs(arguments_of_chat(["--ssd", "--spec", "--model", "m", "--draft", "d"]))
    assert (in_turns["--mode"], in_turns["--model"], in_turns["--draft"]) == ("sd", "m", "d")


def test_servers() -> None:
    assert arguments_of_chat(["--vllm", "--metrics"]) == [
        *COMMON,
        *("--metrics", "--vllm", "http://localhost:40020"),
    ]
    assert arguments_of_chat(["--sglang", "--url", "http://a"])[-2:] == ["--sglang", "http://a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--ssd --eagle", "--eagle has no meaning here"),
        ("--ssd --flh 1 2", "--flh has no meaning here"),
        ("--vllm --tp 4", "--tp has no meaning here"),
        ("--ssd --gpus 4", "--gpus 4: one for the target"),
        ("--ssd --async", "--async needs --spec"),
        ("--vllm --ar", "--ar has no meaning with a server"),
        ("--ssd --port 1", "--port has no meaning with --ssd"),
        ("--ssd --size 5", "no llama model of size 5"),
        ("--ssd --nonsense", "unrecognized arguments: --nonsense"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments_of_chat(line.split())
    assert message in capsys.readouterr().err
