"""`ssd generate --compare`: the draft's texts beside those of the target alone."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ssd import SamplingParams
from ssd.cli.compare import compare, first_difference
from ssd.cli.main import app
from ssd.engine.outputs import SpeculationStats


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["generate", *arguments])
    return result.exit_code, result.output


def test_a_pair_is_compared_with_its_target_alone(tiny_llama: Path) -> None:
    code, output = run(
        *("--model", str(tiny_llama), "--draft", str(tiny_llama), "--mode", "sd", "--deterministic"),
        *("--prompt", "Once", "--prompt", "def", "--max-tokens", "12", "--ignore-eos", "--compare"),
    )
    assert code == 0, output
    assert "24 tokens in" in output
    assert "accepted a round" in output
    assert "all 24 equal" in output


@pytest.mark.parametrize(
    ("more", "reason"), [([], "needs a draft"), (["--draft", "DRAFT", "--json"], "leave out --json")]
)
def test_what_cannot_be_compared_is_refused_before_anything_loads(
    tiny_llama: Path, more: list[str], reason: str
) -> None:
    named = [str(tiny_llama) if each == "DRAFT" else each for each in more]
    code, output = run("--model", str(tiny_llama), "--prompt", "Once", "--compare", *named)
    assert code != 0
    assert reason in output


class TwoMinds:
    """An engine whose target says something else once it is alone."""

    def __init__(self) -> None:
        self.stats = SimpleNamespace(speculation=SpeculationStats())
        self._last = 7

    def generate(self, prompts: list[str], params: SamplingParams, *, use_tqdm: bool) -> list[object]:
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(1, 2, self._last))]) for _ in prompts]

    def switch_mode(self, mode: str) -> None:
        self._last = 8


@pytest.mark.parametrize(
    ("deterministic", "advice"), [(False, "with --deterministic there are none"), (True, "please report")]
)
def test_a_difference_is_said_with_its_place(
    capsys: pytest.CaptureFixture[str], deterministic: bool, advice: str
) -> None:
    assert not compare(TwoMinds(), ["Once"], SamplingParams(), deterministic=deterministic)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "text 1 differs from token 3 on" in said
    assert advice in said


@pytest.mark.parametrize(
    ("some", "others", "place"),
    [([[1, 2]], [[1, 2]], None), ([[1], [2, 3]], [[1], [2, 4]], (1, 1)), ([[1, 2]], [[1]], (0, 1))],
)
def test_the_first_difference_is_found(
    some: list[list[int]], others: list[list[int]], place: tuple[int, int] | None
) -> None:
    assert first_difference(some, others) == place
