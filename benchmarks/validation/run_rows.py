"""A run of `ssd bench run`, predicted: from the bare forwards beside its prompts and where its draft agreed.

For whoever asks how far the plan can be trusted on their own machine. Predicted
are greedy texts that ran one at a time. How much target and draft slowed each other is not predicted: it is
read off the same run where its records tell, and said.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.validation.published import Row, median_row
from ssd.bench.cases import Case, parse_case
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest
from ssd.bench.records import CaseRecord, Forwards
from ssd.config import MAX_LOOKAHEAD
from ssd.draft.ngram import right_guesses
from ssd.planning.followed_text import Shape
from ssd.planning.rolling import simulate
from ssd.planning.text import Text, agreeing_text, replayed_text
from ssd.planning.times import Forward, PairTimes, line_through
from ssd.tuning.measure import contention
from ssd.tuning.search import shape_of

_SHAPING = {
    **{name: name for name in ("draft_children", "draft_lookup", "growth", "backup")},
    "draft_growth": "growth",
}
"""Settings of SSD beside lookahead and width, which the manifest knows of every case: by flag, 0.1's too."""


@dataclass(frozen=True, slots=True)
class _Observed:
    """A prompt in a case, with the forwards beside it."""

    record: CaseRecord
    forwards: Forwards


@dataclass(frozen=True, slots=True)
class _Known:
    """A case of the run, and what is known of it."""

    case: Case
    facts: CaseFacts
    shape: Shape
    observed: Sequence[_Observed]

    @property
    def form(self) -> str:
        return str(self.facts.draft_form)

    @property
    def beside(self) -> tuple[float, float] | None:
        """How much longer verifications and draft steps took than bare ones; None: the run does not tell."""
        if not any(each.record.round_steps for each in self.observed):
            return None
        rows, width = self.facts.lookahead + 1, self.facts.draft_width
        return contention(
            [each.record for each in self.observed],
            target=mean(each.forwards.target_seconds[rows] for each in self.observed),
            draft=mean(each.forwards.draft_seconds[self.form][width] for each in self.observed),
        )

    @property
    def has_ranks(self) -> bool:
        """Runs of earlier versions tell only where the first guess was right."""
        return all(self.form in each.forwards.ranks for each in self.observed)

    def text(self, one: _Observed, coverage: float) -> Text:
        forwards, seed = one.forwards, one.record.prompt
        if self.has_ranks:
            return replayed_text(forwards.ranks[self.form], seed=seed, runs=forwards.runs)
        # The run keeps no prompts: what only these foretell is not known to be foretold.
        runs = right_guesses((), one.record.tokens, MAX_LOOKAHEAD)
        return agreeing_text(forwards.agreement[self.form], runs, coverage=coverage, seed=seed)


def run_rows(folder: RunFolder, *, coverage: float) -> list[Row]:
    """A row for each case; `coverage`: how often another guess is right where the first is wrong."""
    manifest = folder.manifest()
    rows = [_row(_group(manifest), known, coverage) for known in _known(folder, manifest)]
    if not rows:
        raise ValueError(
            f"{folder.path} has nothing to predict: that takes a case at temperature 0 and batch size 1 "
            "whose prompts have bare forwards; go on with `ssd bench run`"
        )
    return rows


def _known(folder: RunFolder, manifest: Manifest) -> list[_Known]:
    facts = {each.label: each for each in manifest.cases}
    forwards = {(each.dataset, each.prompt): each for each in folder.forwards()}
    by_case: dict[str, list[_Observed]] = {}
    for record in folder.records():
        beside = forwards.get((record.dataset, record.prompt))
        form = facts[record.case].draft_form
        if beside is not None and (form is None or form in beside.agreement):
            by_case.setdefault(record.case, []).append(_Observed(record, beside))
    return [
        _Known(case, facts[label], _shape(case, facts[label], manifest.settings.engine), observed)
        for label, observed in by_case.items()
        if _is_predicted(case := parse_case(label))
    ]


def _is_predicted(case: Case) -> bool:
    """Agreement is that of greedy texts, and forwards are bare ones of one text on the target's own cores."""
    return (case.temperature, case.batch_size, case.all_cores) == (0, 1, False)


def _shape(case: Case, facts: CaseFacts, engine: Mapping[str, object]) -> Shape:
    said = {
        name: engine[flag]
        for flag, name in _SHAPING.items()
        if flag in engine and getattr(case, name) is None
    }
    shape = shape_of(replace(case, **said))  # type: ignore[arg-type]  # as the engine took them
    return shape if case.mode == "ar" else replace(shape, lookahead=facts.lookahead, width=facts.draft_width)


def _row(group: str, known: _Known, coverage: float) -> Row:
    given = ["bare forwards"]
    if known.case.mode == "ar":
        predicted = [1 / each.forwards.target_seconds[1] for each in known.observed]
    elif known.case.mode == "sd":
        given.append("agreement")
        predicted = [_sd_rate(known, each, coverage) for each in known.observed]
    else:
        beside = known.beside
        given += ["agreement"] if known.has_ranks else ["agreement", f"coverage {coverage:g}"]
        given.append("no contention" if beside is None else "contention {:.2f}, {:.2f}".format(*beside))
        predicted = [_ssd_rate(known, each, coverage, beside or (1.0, 1.0)) for each in known.observed]
    measured = [each.record.rate for each in known.observed]
    return median_row(group, known.case.name, ", ".join(given), measured, predicted)


def _sd_rate(known: _Known, one: _Observed, coverage: float) -> float:
    most, draft, target = (
        known.facts.lookahead,
        one.forwards.draft_seconds[known.form],
        one.forwards.target_seconds,
    )
    text, verify = known.text(one, coverage), line_through(1, target[1], most + 1, target[most + 1])
    # Without a number the controller finds the best, plain decoding among them.
    lookaheads = range(most + 1) if known.case.lookahead is None else (most,)
    # A draft step of one row; runs of earlier versions have only that of a draft that works ahead.
    return max(
        text.tokens_a_round(each) / (each * draft[min(draft)] + verify.seconds(each + 1))
        for each in lookaheads
    )


def _ssd_rate(known: _Known, one: _Observed, coverage: float, beside: tuple[float, float]) -> float:
    target, rows = one.forwards.target_seconds, known.facts.lookahead + 1
    times = PairTimes(
        line_through(1, target[1], rows, target[rows]),
        Forward(one.forwards.draft_seconds[known.form][known.facts.draft_width]),
        target_beside=beside[0],
        draft_beside=beside[1],
    )
    return simulate([known.text(one, coverage)], times, known.shape).rate


def _group(manifest: Manifest) -> str:
    session = manifest.sessions[0]
    names = [each.name for each in (manifest.target, manifest.draft) if each is not None]
    machine = session.hardware.get("processor", "a machine without a name")
    return f"{' with '.join(names)} on {machine}, measured {session.started[:10]}"
