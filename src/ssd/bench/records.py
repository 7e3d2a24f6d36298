"""What one prompt in one case took, the bare forwards beside it, and ties, as kept: plain values for msgspec.

Where prompts ran together, each record has its own times and counts of tokens, and an equal share of
what belongs to the whole batch (seconds, rows): sums over records are true either way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Literal

Lane = Literal["target", "wait", "host", "draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """Someone computed, or waited, from here to there: seconds since the first span kept."""

    lane: Lane
    started: float
    ended: float
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRecord:
    tokens: Sequence[int]
    num_prompt: int
    first_token: float
    """Seconds from the request to its first token."""
    seconds_per_token: float
    """Mean of the tokens after the first."""
    rounds: int
    drafted: int
    accepted: int
    hits: int
    late: int
    unknown: int
    unheard: int
    depths: Sequence[int]
    """Rounds by how many drafted tokens were accepted: none, one, two …"""

    seconds: float
    """Share of the wall time, prompts included."""
    step_seconds: float
    verify_seconds: float
    wait_seconds: float
    target_rows: float
    """Rows of the target's forwards, prompts included."""
    draft_rows: float
    draft_steps: float
    draft_seconds: float
    round_seconds: float = 0.0
    """Share of the verify seconds of steps in which every row was generated: prompts excluded."""
    round_steps: float = 0.0
    """Number of these steps, shared out the same way."""
    spans: Sequence[TimelineSpan] = ()
    """A few rounds, of the first prompts only."""

    @property
    def rate(self) -> float:
        """Tokens a second for whoever waits for this text."""
        return 1 / self.seconds_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord(PromptRecord):
    """The same, with where it belongs."""

    dataset: str
    prompt: int
    """Its place in the data set, counted from 0."""
    case: str
    """The case's label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """Measured once in each turn of the prompts: seconds by name, agreement by draft."""

    dataset: str
    prompt: int
    target_seconds: Mapping[int, float]
    """By rows."""
    draft_seconds: Mapping[str, Mapping[int, float]]
    """By the draft's form, then by rows."""
    agreement: Mapping[str, Sequence[bool]]
    """By the draft's form: of each greedy token, whether the draft would have guessed it."""
    ranks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Likewise: which of the draft's guesses it was, counted from 0; MISSED (-1): none of the first few."""
    runs: Sequence[int] = ()
    """Of each greedy token: how many from there on a look at prompt and text before it gets right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """Where a case's text leaves that of another: how close the two tokens' scores were."""

    dataset: str
    prompt: int
    case: str
    reference: str
    place: int
    gap: float
    """In logits."""


Key = tuple[str, int]
"""Data set and first prompt."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What counts as one observation: a prompt that ran alone, or all prompts of a batch that ran together.

    Texts of one batch share its forwards and so its luck: one by one they would make intervals too narrow.
    """

    seconds_per_token: float
    first_token: float

    @property
    def rate(self) -> float:
        return 1 / self.seconds_per_token


def units(records: Iterable[CaseRecord], *, batch_size: int, first_prompt: int) -> Mapping[Key, Unit]:
    """Of one case. Of a batch: means over its texts."""
    together: dict[Key, list[CaseRecord]] = {}
    for each in records:
        start = first_prompt + (each.prompt - first_prompt) // batch_size * batch_size
        together.setdefault((each.dataset, start), []).append(each)
    return {
        key: Unit(
            mean(each.seconds_per_token for each in members), mean(each.first_token for each in members)
        )
        for key, members in together.items()
    }
