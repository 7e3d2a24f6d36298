"""Predictions beside what was measured, by this project and by others.

Every row says what it predicts and from what. A figure that an input was derived from is not predicted.

The published SSD (Kumar, Dao, May 2026) works in rounds: during a verification the draft prepares whole
speculations for the outcomes it expects, in one step to take the last outcome in and one for each token;
on a hit the next verification starts when both are done, on a miss after another whole speculation.
"""

import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.planning.hardware import find_device
from ssd.planning.models import find_model
from ssd.planning.roofline import DeviceGroup, forward_on
from ssd.planning.rounds import (
    FAN_OUT,
    Pair,
    ar_rate,
    best_ssd,
    hit_rate,
    miss_seconds,
    sd_rate,
    sd_seconds,
    ssd_seconds,
    tokens_a_round,
)
from ssd.planning.times import Forward, PairTimes, line_through
from ssd.tuning.texts import Guesses

_HERE = Path(__file__).parent
_BARE = "bare forwards, guesses"
_CONTEXT = 512
"""Tokens; half a prompt and what was written so far, roughly."""


@dataclass(frozen=True, slots=True)
class Row:
    group: str
    what: str
    given: str
    """What the prediction was made from, beside data sheets and the one overhead."""
    measured: float
    predicted: float
    limit: float
    """The error it was meant to stay within."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def is_within(self) -> bool:
        return abs(self.error) <= self.limit


def acceptance_for(tokens: float, lookahead: int) -> float:
    """The acceptance at which a round yields so many tokens: `tokens_a_round`, backwards."""
    if not 1 <= tokens <= lookahead + 1:
        raise ValueError(
            f"a round of lookahead {lookahead} yields 1 to {lookahead + 1} tokens, not {tokens:.2f}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_a_round(middle, lookahead) < tokens else (low, middle)
    return (low + high) / 2


def published_seconds(
    times: PairTimes, lookahead: int, hits: float, *, fan_out: int = 3, batch: int = 1
) -> float:
    """A round of the published SSD, on average; a batch waits for a sequence that misses."""
    width = fan_out * (lookahead + 1) * batch
    missing = (1 - hits**batch) * miss_seconds(times, lookahead, batch=batch)
    return ssd_seconds(times, lookahead, width=width, batch=batch) + missing


def published_rate(
    times: PairTimes, acceptance: float, lookahead: int, hits: float, *, fan_out: int = 3, batch: int = 1
) -> float:
    seconds = published_seconds(times, lookahead, hits, fan_out=fan_out, batch=batch)
    return batch * tokens_a_round(acceptance, lookahead) / seconds


def published_rows() -> list[Row]:
    data = tomllib.loads((_HERE / "published.toml").read_text())
    pairs = {pair["name"]: pair for pair in data["pair"]}
    rows = [row for pair in data["pair"] for row in _pair_rows(pair)]
    rows += _again_rows(data["again"], pairs[data["again"]["pair"]])
    rows += _batch_rows(data["batches"], pairs[data["batches"]["pair"]])
    rows += _hit_rows(data["hits"], pairs[data["hits"]["pair"]])
    other = data["other"]
    alone = forward_on(
        DeviceGroup(find_device(other["device"])),
        find_model(other["target"], other["weights"]),
        context=_CONTEXT,
    )
    rows.append(Row("others", "AR, Llama 70B FP8, one H200", "", other["ar"], 1 / alone.seconds(1), 0.15))
    return rows


def pair_times(pair: Mapping[str, Any], *, batch: int = 1) -> PairTimes:
    device = find_device(pair["device"])
    target, draft = find_model(pair["target"]), find_model(pair["draft"])
    return PairTimes(
        forward_on(DeviceGroup(device, pair["tp"]), target, sequences=batch, context=_CONTEXT),
        forward_on(DeviceGroup(device), draft, sequences=batch, context=_CONTEXT),
    )


def _pair_rows(pair: Mapping[str, Any]) -> Iterator[Row]:
    name, times = pair["name"], pair_times(pair)
    yield Row(name, "AR", "", pair["ar"], ar_rate(times), 0.15)
    for label, sd, ssd in [
        ("", pair["sd"], pair["ssd"]),
        *((f", {key}", *both) for key, both in pair["sets"].items()),
    ]:
        yield Row(name, f"SD{label}", "acceptance from SSD", sd, _sd_from_ssd(pair, times, ssd), 0.15)
        yield Row(name, f"SSD{label}", "acceptance from SD, hits", ssd, _ssd_from_sd(pair, times, sd), 0.15)


def _sd_from_ssd(pair: Mapping[str, Any], times: PairTimes, ssd: float) -> float:
    lookahead = pair["ssd_lookahead"]
    seconds = published_seconds(times, lookahead, pair["hit_rate"])
    return sd_rate(times, acceptance_for(ssd * seconds, lookahead), pair["sd_lookahead"])


def _ssd_from_sd(pair: Mapping[str, Any], times: PairTimes, sd: float) -> float:
    acceptance = _acceptance(times, sd, pair["sd_lookahead"])
    return published_rate(times, acceptance, pair["ssd_lookahead"], pair["hit_rate"])


def _acceptance(times: PairTimes, sd: float, lookahead: int) -> float:
    return acceptance_for(sd * sd_seconds(times, lookahead), lookahead)


def _again_rows(again: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Row]:
    times = pair_times(pair)
    acceptance = _acceptance(times, again["sd"], again["sd_lookahead"])
    for lookahead, rate in again["ssd"].items():
        predicted = published_rate(times, acceptance, int(lookahead), pair["hit_rate"])
        yield Row(
            "Qwen3, run again", f"SSD, K = {lookahead}", "acceptance from its SD, hits", rate, predicted, 0.15
        )


def _batch_rows(batches: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Row]:
    acceptance = _acceptance(pair_times(pair), batches["sd"], batches["lookahead"])
    for size, rate in batches["ssd"].items():
        times = pair_times(pair, batch=int(size))
        lookahead, hits = batches["lookahead"], pair["hit_rate"]
        predicted = published_rate(times, acceptance, lookahead, hits, batch=int(size))
        yield Row(
            "Llama-3.1, batches", f"SSD, batch {size}", "acceptance from SD, hits", rate, predicted, 0.15
        )


def _hit_rows(hits: Mapping[str, Any], pair: Mapping[str, Any]) -> Iterator[Row]:
    own = _acceptance(pair_times(pair), pair["sd"], pair["sd_lookahead"])
    for temperature, coverage in hits["coverage"].items():
        acceptance = hits["acceptance"].get(temperature, own)
        predicted = hit_rate(acceptance, coverage, pair["ssd_lookahead"])
        measured = hits["published"][temperature]
        yield Row(
            pair["name"], f"hits at T = {temperature}", "coverage of another pair", measured, predicted, 0.15
        )


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a run: its bare forwards, the draft's guesses at its text, and what was measured."""

    alone: float
    verify: float
    draft: Mapping[str, float]
    rates: Mapping[str, float]
    guesses: Guesses


def measured_rows() -> list[Row]:
    """A run that is kept with the project, on the machine it names: bare forwards and guesses predict it."""
    data = json.loads((_HERE / "two_cores.json").read_text())
    prompts = [
        Prompt(
            each["T_v1"],
            each["T_v9"],
            each["T_d12"],
            each["rates"],
            Guesses([each["ranks"]]),
        )
        for each in data["prompts"]
    ]
    one_row, beside = data["one_row"], data["beside"]
    predictions = {
        "ar": [1 / each.alone for each in prompts],
        "sd4": [_sd_here(each, "model", 4, one_row) for each in prompts],
        "ssd": [_ssd_here(each, "model", beside) for each in prompts],
        "sd5+int8": [_sd_here(each, "int8", 5, one_row) for each in prompts],
        "ssd+int8": [_ssd_here(each, "int8", beside) for each in prompts],
    }
    # Beside each other both are a little slower than bare: benchmarks/beside.py measures by how much.
    given = {"ar": _BARE, "sd4": _BARE, "sd5": _BARE, "ssd": f"{_BARE}, contention"}
    return [
        median_row(data["machine"], name, given[name[:3]], [each.rates[name] for each in prompts], found)
        for name, found in predictions.items()
    ]


def median_row(
    group: str, what: str, given: str, measured: Sequence[float], predicted: Sequence[float]
) -> Row:
    """By prompt. The median of ratios within one: the machine's drift hits both sides of each alike."""
    ratio = statistics.median(ours / theirs for ours, theirs in zip(predicted, measured, strict=True))
    middle = statistics.median(measured)
    return Row(group, what, given, middle, middle * ratio, 0.10)


def _sd_here(prompt: Prompt, precision: str, lookahead: int, one_row: Mapping[str, float]) -> float:
    """`one_row`: a draft's forward of one row beside one of twelve."""
    drafting = lookahead * prompt.draft[precision] * one_row[precision]
    return prompt.guesses.tokens_a_round(lookahead) / (drafting + prompt.verify)


def _ssd_here(prompt: Prompt, precision: str, beside: Mapping[str, Mapping[str, float]]) -> float:
    times = PairTimes(
        line_through(1, prompt.alone, 9, prompt.verify),
        Forward(prompt.draft[precision]),
        target_beside=beside["target"][precision],
        draft_beside=beside["draft"][precision],
    )
    guesses = prompt.guesses
    return best_ssd(times, Pair(guesses.acceptance, guesses.coverage(FAN_OUT))).rate
