"""benchmarks/reference.py: the well-known flags as settings of `ssd chat` and `ssd bench run`."""

import pytest

from benchmarks.reference import NO_MEANING, arguments_of_chat, arguments_of_run
from ssd.bench.cases import parse_case

COMMON = ["--temperature", "0.0", "--max-tokens", "2048"]


def pairs(arguments: list[str]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def pairs_of_run(line: str) -> dict[str, str]:
    return pairs(arguments_of_run(line.split()))


def test_chat_with_the_draft_that_works_ahead() -> None:
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
def test_what_has_no_meaning_for_chat_is_refused_by_name(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments_of_chat(line.split())
    assert message in capsys.readouterr().err


def test_run_with_the_draft_that_works_ahead() -> None:
    line = "--llama --size 70 --gpus 2 --spec --async --k 7 --f 2 --b 4 --temp 0.7 --x 0.5 --backup fast"
    assert pairs_of_run(f"{line} --all --numseqs 32 --output_len 256") == {
        "--model": "meta-llama/Llama-3.1-70B-Instruct",
        "--draft": "meta-llama/Llama-3.2-1B-Instruct",
        "--cases": "ssd7+ratio+saguaro0.5+children2+backup=ngram",
        "--datasets": "humaneval,alpaca,gsm8k,ultrafeedback",
        "--batch-sizes": "4",
        "--temperatures": "0.7",
        "--num-prompts": "32",
        "--max-tokens": "256",
        "--run": "runs/Llama-3.1-70B-Instruct-ssd7+ratio+saguaro0.5+children2+backup=ngram-b4-t0.7",
        "--device": "cuda:0",
        "--draft-device": "cuda:1",
    }
    parse_case("ssd7+ratio+saguaro0.5+children2+backup=ngram")


@pytest.mark.parametrize(
    ("line", "case", "datasets"),
    [
        ("--qwen --size 8", "ar", "gsm8k"),
        ("--qwen --spec --humaneval --gsm", "sd", "humaneval,gsm8k"),
        ("--spec --k 5 --ultrafeedback", "sd5", "ultrafeedback"),
        ("--spec --async --alpaca", "ssd", "alpaca"),
    ],
)
def test_modes_and_data_sets(line: str, case: str, datasets: str) -> None:
    found = pairs_of_run(line)
    assert (found["--cases"], found["--datasets"]) == (case, datasets)
    assert ("--draft" in found) == (case != "ar")
    assert (found["--num-prompts"], found["--max-tokens"]) == ("128", "512")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--async", "--async needs --spec"),
        ("--k 5", "--k has no meaning without --spec"),
        ("--spec --f 3", "--f has no meaning without --spec --async"),
        ("--spec --backup jit", "--backup has no meaning without --spec --async"),
        ("--size 5", "no llama model of size 5"),
        ("--spec --gpus 2", "--gpus 2: one for the target"),
        *((f"--{name}", f"--{name} has no meaning here") for name in NO_MEANING["bench"]),
    ],
)
def test_what_has_no_meaning_for_a_run_is_refused_by_name(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments_of_run(line.split())
    assert said in capsys.readouterr().err
