"""`ssd generate --compare`: the draft's texts beside those of the target alone, and what is concluded."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ssd import LLM, SamplingParams
from ssd.cli.compare import Ratios, compare, first_difference, verdict
from ssd.cli.main import app
from ssd.engine.outputs import SpeculationStats
from ssd.runtime.cores import CoreSplit


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["generate", *arguments])
    return result.exit_code, result.output


def test_a_pair_is_compared_with_its_target_alone(tiny_llama: Path) -> None:
    code, output = run(
        *("--model", str(tiny_llama), "--draft", str(tiny_llama), "--mode", "sd", "--deterministic"),
        *("--prompt", "Once", "--prompt", "def", "--max-tokens", "12", "--ignore-eos", "--compare"),
        *("--temperature", "0.8"),
    )
    assert code == 0, output
    assert "Once" in output
    assert "target alone" in output
    assert "all 24 equal in 6 runs" in output
    assert "too busy" in output or "too few" in output


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


def test_the_target_alone_speculates_nothing_and_gets_its_draft_back(tiny_llama: Path) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_llama), draft=str(tiny_llama), mode="sd", show_progress=False) as llm:
        with llm.target_alone():
            alone = llm.generate("Once", params, use_tqdm=False)[0].outputs[0]
        drafted = llm.generate("Once", params, use_tqdm=False)[0].outputs[0]
    assert alone.speculation.drafted == 0
    assert drafted.speculation.accepted > 0


class TwoMinds:
    """An engine whose target says something else once it is alone."""

    cores = CoreSplit((), ())

    def __init__(self) -> None:
        self._last = 7

    def generate(self, prompts: list[str], params: SamplingParams, *, use_tqdm: bool) -> list[object]:
        speculation = SpeculationStats(rounds=2, drafted=2, accepted=1)
        text = SimpleNamespace(token_ids=(1, 2, self._last), text="x", speculation=speculation)
        return [SimpleNamespace(prompt=each, outputs=[text]) for each in prompts]

    @contextmanager
    def target_alone(self, *, all_cores: bool = False) -> Iterator[None]:
        self._last = 8
        yield
        self._last = 7


@pytest.mark.parametrize(
    ("deterministic", "advice"), [(False, "--deterministic excludes ties"), (True, "please report")]
)
def test_a_difference_is_said_with_its_place(
    capsys: pytest.CaptureFixture[str], deterministic: bool, advice: str
) -> None:
    assert not compare(TwoMinds(), ["Once"], SamplingParams(), deterministic=deterministic)  # type: ignore[arg-type]
    said = capsys.readouterr().out
    assert "two runs of text 1 differ from token 3 on" in said
    assert advice in said


@pytest.mark.parametrize(
    ("some", "others", "place"),
    [([[1, 2]], [[1, 2]], None), ([[1], [2, 3]], [[1], [2, 4]], (1, 1)), ([[1, 2]], [[1]], (0, 1))],
)
def test_the_first_difference_is_found(
    some: list[list[int]], others: list[list[int]], place: tuple[int, int] | None
) -> None:
    assert first_difference(some, others) == place


@pytest.mark.parametrize(
    ("own", "everywhere", "per_round", "num_tokens", "load", "said"),
    [
        ([2.0, 2.1, 2.2], [1.4, 1.5, 1.6], 2.5, 64, 0.02, "Faster in all 3 turns: 1.50 (1.40–1.60)"),
        ([2.0, 2.1, 2.2], None, 2.5, 64, None, "cannot be told here"),
        ([1.3, 1.4, 1.5], [0.95, 1.0, 1.1], 2.5, 64, 0.0, "Neither faster nor slower in all 3 turns: 1.00"),
        ([1.3, 1.4, 1.5], [0.7, 0.8, 0.9], 2.5, 64, 0.0, "Slower in all 3 turns: 0.80 (0.70–0.90)"),
        # All cores may be the slower choice: then the target's own cores are what the draft must beat.
        ([0.8, 0.85, 0.9], [1.4, 1.5, 1.6], 2.5, 64, 0.0, "Slower in all 3 turns: 0.85"),
        # A draft that gave .14 tokens a round cannot have made decoding 4.68 times as fast.
        ([4.5, 4.68, 4.8], [4.5, 4.6, 4.7], 1.14, 64, 0.0, "does not come from drafting alone"),
        ([2.0, 2.1, 2.2], [1.4, 1.5, 1.6], 2.5, 64, 0.4, "too busy to tell: other programs took 40%"),
        ([1.0, 2.1, 2.2], [1.4, 1.5, 1.6], 2.5, 64, 0.0, "differ too much"),
        ([2.0, 2.1, 2.2], [1.4, 1.5, 1.6], 2.5, 31, 0.0, "too few to tell"),
    ],
)
def test_a_verdict_is_what_speeds_and_rounds_allow(
    own: list[float],
    everywhere: list[float] | None,
    per_round: float,
    num_tokens: int,
    load: float | None,
    said: str,
) -> None:
    ratios = [Ratios(own), *([Ratios(everywhere)] if everywhere else [])]
    assert said in verdict(ratios, per_round, num_tokens, load)
