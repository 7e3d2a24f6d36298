"""Writes the result as a file for `ssd serve --config`: settings, and the reasons as comments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from ssd.bench.cases import Case
from ssd.bench.statistics import Estimate
from ssd.config import Precision
from ssd.planning.rounds import FAN_OUT
from ssd.tuning.confirm import CaseRates
from ssd.tuning.measure import Facts
from ssd.tuning.search import PredictedCase

_WIDTH = 108
Cores = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of tuning."""

    model: str
    draft: Mapping[str, object]
    """The draft's model and the settings that the user gave for it."""
    given: Mapping[str, object]
    """Engine settings of machine and memory that the user gave; they are kept."""
    facts: Facts
    predicted: Sequence[PredictedCase]
    measured: Sequence[CaseRates]
    """Rates of the candidates that were run; plain decoding first."""
    chosen: CaseRates
    held_out: Estimate | None = None
    """The ratio of the chosen case over plain decoding, on prompts that tuning did not use."""

    @property
    def plain(self) -> CaseRates:
        return self.measured[0]

    def over_plain(self, measured: CaseRates) -> Estimate:
        """The ratio on the prompts of the choice; intervals hold for all candidates together."""
        return measured.over(self.plain, among=len(self.measured) - 1)

    def predicted_rate(self, case: Case) -> float | None:
        """The predicted rate. Predicted cases have no temperature and cores: texts and times include them."""
        plain = replace(case, temperature=0.0, all_cores=False)
        return next((each.rate for each in self.predicted if each.case == plain), None)


def measured_cores(case: Case, *, target: Cores, draft: Cores) -> tuple[dict[str, Cores], dict[str, Cores]]:
    """Core settings of target and draft: the cores that the case was measured on."""
    if not target:
        return {}, {}
    if case.all_cores:
        return {"cores": (*target, *draft)}, {"cores": ()}
    return {"cores": target}, {"cores": draft}


def settings_of(tuned: Tuned) -> dict[str, object]:
    """The settings in the form of a configuration file; without a draft if speculation does not pay off."""
    case = tuned.chosen.case
    settings = _spelled({"model": tuned.model, "mode": case.mode, **tuned.given, **case.settings})
    if case.mode != "ar":
        settings["draft"] = _spelled({**tuned.draft, **case.draft_settings})
    return settings


def _spelled(settings: Mapping[str, object]) -> dict[str, object]:
    """Names with hyphens, as on the command line; leaves out empty lists of cores."""
    return {
        name.replace("_", "-"): list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value != ()
    }


def reasons(tuned: Tuned) -> list[str]:
    """Short sentences, the decision first; the measured rates of cases are in `measurements`."""
    sentences = [_decision(tuned)]
    if tuned.held_out is not None:
        sentences.append(
            f"on {tuned.held_out.count} prompts that tuning has not seen: {tuned.held_out} × plain decoding."
        )
    if tuned.model.endswith(".gguf"):
        sentences.append(
            "only this engine was measured; on two CPU cores of ours llama.cpp decoded a 4-bit file faster "
            "(docs/performance.md; python -m benchmarks.peers compares them)."
        )
    sentences += [_about(tuned, precision) for precision in tuned.facts.drafts]
    if tuned.facts.spread != 1:
        sentences.append(
            f"with the draft's cores too, a forward of the target takes {tuned.facts.spread:.2f} × as long "
            "as on its own."
        )
    return sentences


def measurements(tuned: Tuned) -> list[str]:
    """A sentence for each case, for the file."""
    sentences = []
    for each in tuned.measured:
        if each.case.mode == "ar" and each is not tuned.plain:
            continue
        rate = tuned.predicted_rate(each.case)
        predicted = "" if rate is None else f" (predicted {rate:.2f})"
        over = "" if each is tuned.plain else f", {tuned.over_plain(each)} × plain decoding"
        sentences.append(f"measured: {each.case.name}: {each.rate:.2f} tokens/s{over}{predicted}")
    return sentences


def _decision(tuned: Tuned) -> str:
    if tuned.chosen.case.mode == "ar":
        others = [each for each in tuned.measured if each.case.mode != "ar"]
        best = max(others, key=lambda each: tuned.over_plain(each).value)
        return (
            "Speculation does not pay off here, within the noise of the measurement: its best case, "
            f"{best.case.name}, ran at {tuned.over_plain(best)} × plain decoding. The target decodes alone."
        )
    gain = tuned.over_plain(tuned.chosen).value
    return (
        f"{tuned.chosen.case.name} was {gain:.2f} × as fast as plain decoding on the prompts that it was "
        "chosen by, where the best of several looks a little better than it is."
    )


def _about(tuned: Tuned, precision: Precision) -> str:
    draft, target = tuned.facts.drafts[precision], tuned.facts.target_seconds
    guesses = draft.guesses
    return (
        f"draft ({precision}): its first guess is right at {guesses.acceptance:.0%} of places, one of the "
        f"next three at {guesses.coverage(FAN_OUT):.0%} of the rest; a step of 12 rows takes "
        f"{1e3 * draft.seconds[12]:.1f} ms bare, {draft.draft_beside:.2f} × that beside the target, whose "
        f"verification of 9 rows takes {1e3 * target[9]:.1f} ms bare and {draft.target_beside:.2f} × that "
        "beside the draft."
    )


def as_yaml(tuned: Tuned) -> str:
    lines = [
        f"# {line}" for sentence in [*reasons(tuned), *measurements(tuned)] for line in _wrapped(sentence)
    ]
    return "\n".join([*lines, "", yaml.safe_dump(settings_of(tuned), sort_keys=False)])


def _wrapped(sentence: str) -> list[str]:
    import textwrap

    return textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ")
