"""benchmarks/bench.py: the well-known flags as arguments of `ssd bench run`."""

import pytest

from benchmarks.bench import NO_MEANING, arguments_of_run
from ssd.bench.cases import parse_case


def pairs(line: str) -> dict[str, str]:
    arguments = arguments_of_run(line.split())
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_the_draft_that_works_ahead() -> None:
    line = "--llama --size 70 --gpus 2 --spec --async --k 7 --f 2 --b 4 --temp 0.7 --x 0.5 --backup fast"
    assert pairs(f"{line} --all --numseqs 32 --output_len 256") == {
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
    found = pairs(line)
    assert (found["--cases"], found["--datasets"]) == (case, datasets)
    assert ("--draft" in found) == (case != "ar")
    assert (found["--num-prompts"], found["--max-tokens"]) == ("128", "512")


def test_names() -> None:
    found = pairs("--model m --draft d --spec --name mine --max_model_len 4096 --block_sz 32")
    assert (found["--model"], found["--draft"], found["--run"]) == ("m", "d", "runs/mine")
    assert (found["--max-model-len"], found["--block-size"]) == ("4096", "32")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--async", "--async needs --spec"),
        ("--k 5", "--k has no meaning without --spec"),
        ("--spec --f 3", "--f has no meaning without --spec --async"),
        ("--spec --backup jit", "--backup has no meaning without --spec --async"),
        ("--size 5", "no llama model of size 5"),
        ("--spec --gpus 2", "--gpus 2: one for the target"),
        *((f"--{name}", f"--{name} has no meaning here") for name in NO_MEANING),
    ],
)
def test_refusals(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments_of_run(line.split())
    assert said in capsys.readouterr().err
