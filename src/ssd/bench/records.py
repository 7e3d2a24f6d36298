"""Records of a run: prompts, bare forwards and ties. Plain values for msgspec.

If prompts ran together, each record has its own times and counts of tokens, and an equal share of the batch's
totals (seconds, rows), so sums over records are correct in any case.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean


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
    """Share of the verify seconds of steps without prompt rows."""
    round_steps: float = 0.0
    """Share of the number of these steps."""
    other_load: float | None = None
    """Share of the run's cores that other programs took meanwhile; None: it cannot be told."""

    @property
    def rate(self) -> float:
        """Tokens a second of this text."""
        return 1 / self.seconds_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord(PromptRecord):
    """A prompt's record with its data set, prompt and case."""

    dataset: str
    prompt: int
    """Index of the prompt in the data set."""
    case: str
    """The case's label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwards:
    """Bare forwards and the draft's agreement, measured once for each batch of prompts."""

    dataset: str
    prompt: int
    target_seconds: Mapping[int, float]
    """By number of rows."""
    draft_seconds: Mapping[str, Mapping[int, float]]
    """By the draft's form, then by number of rows."""
    agreement: Mapping[str, Sequence[bool]]
    """By the draft's form: for each greedy token, whether it is the draft's first guess."""
    ranks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By the draft's form: each greedy token's rank among the draft's guesses from 0; MISSED (-1): none."""
    runs: Sequence[int] = ()
    """For each greedy token, how many tokens from there on n-gram lookup predicts correctly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """The first difference between the texts of two cases: how close the two tokens' scores were."""

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
    """One observation: a prompt that ran alone, or all prompts of a batch.

    Texts of a batch share its forwards, so they are not independent: counted separately they would make
    intervals too narrow.
    """

    seconds_per_token: float
    first_token: float

    @property
    def rate(self) -> float:
        return 1 / self.seconds_per_token


def units(records: Iterable[CaseRecord], *, batch_size: int, first_prompt: int) -> Mapping[Key, Unit]:
    """The observations of one case; those of a batch are means over its texts."""
    batches: dict[Key, list[CaseRecord]] = {}
    for each in records:
        start = first_prompt + (each.prompt - first_prompt) // batch_size * batch_size
        batches.setdefault((each.dataset, start), []).append(each)
    return {
        key: Unit(
            mean(each.seconds_per_token for each in members), mean(each.first_token for each in members)
        )
        for key, members in batches.items()
    }
