"""The host's state of draft sessions: text, parameters, and the order of outcomes and frames.

A draft session is one sequence of one engine. Its tree is in the tables (`draft/tree/tables.py`). `Ledger`
holds the numbers of all sessions as columns, so that a step need not look at each session. `RoundTimer`
estimates how many draft steps are left before a session's next outcome. Knows no model and no sockets.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ssd.draft.protocol.messages import (
    MAX_ID,
    Open,
    Sampling,
    credit_for,
    unpack_ints,
)
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.tables import KINDS, NO_TOKEN
from ssd.moving_average import MovingAverage, moved_towards
from ssd.ngram import Repeats
from ssd.sampling import History, SamplingParams, Tally

Longs = NDArray[np.int64]

_INITIAL_VALUE = 1.0
"""Tokens that a round is assumed to gain before the first outcome."""
_VALUE_WEIGHT = 0.1
"""Weight of the newest round in the moving average of gained tokens."""


class Ledger:
    """Numbers of all sessions, as columns by row of the tables. Row 0 belongs to no session."""

    def __init__(self, sequences: int) -> None:
        def longs() -> Longs:
            return np.zeros(sequences + 1, np.int64)

        self.seq, self.epoch, self.n = longs(), longs(), longs()
        """The engine's id of the sequence, its epoch, and the number of applied outcomes."""
        self.length, self.num_computed = longs(), longs()
        """Tokens of the text, and how many of them are read. Steps that are in flight may have read more."""
        self.openings = longs()
        """Another number for each session that ever had the row; 0: none has it."""
        self._numbers = itertools.count(1)
        self.sent, self.arrived = longs(), longs()
        """Frames sent, and frames acknowledged."""
        self.credit = longs()
        """Frames that may be in flight."""
        self.covered = longs()
        """Tokens for which KV blocks are allocated."""
        self.value = np.zeros(sequences + 1)
        """Moving average of tokens gained per round."""
        self.is_open = np.zeros(sequences + 1, np.bool_)
        self.is_out_of_sync = np.zeros(sequences + 1, np.bool_)
        """An outcome is missing: the tree does not grow until the sequence is opened again."""
        self.is_held = np.zeros(sequences + 1, np.bool_)
        """The text needs prefill, or lacks KV blocks."""

    def clear(self, row: int) -> None:
        for column in vars(self).values():
            if isinstance(column, np.ndarray):
                column[row] = 0

    def enter(self, row: int, seq: int, epoch: int, length: int, lookahead: int) -> None:
        self.clear(row)
        self.seq[row], self.epoch[row], self.length[row] = seq, epoch, length
        self.credit[row], self.value[row], self.is_open[row] = credit_for(lookahead), _INITIAL_VALUE, True
        self.openings[row] = next(self._numbers)

    def note_outcome(self, row: int, n: int, length: int) -> None:
        gained = length - int(self.length[row]) - 1
        self.n[row], self.length[row] = n, length
        self.value[row] = moved_towards(self.value[row], gained, _VALUE_WEIGHT)

    def may_grow(self, row: int) -> bool:
        """Whether the session has credit and is in sync. Ignores prefill and KV blocks."""
        return bool(self.sent[row] - self.arrived[row] < self.credit[row] and not self.is_out_of_sync[row])

    def live(self) -> NDArray[np.bool_]:
        """Which sequences may grow."""
        has_credit = self.sent - self.arrived < self.credit
        found: NDArray[np.bool_] = self.is_open & has_credit & ~self.is_out_of_sync & ~self.is_held
        return found


_LONGEST_ROUND = 10.0
"""Seconds. A longer gap between two outcomes is a pause, not a round."""
_WEIGHT, _OWN_WEIGHT = 0.1, 0.5
"""Weight of the newest step or round of any sequence, and of the newest round of the sequence itself."""
_MAX_STEPS = 1 << 10
"""No tree has more nodes than this."""


class RoundTimer:
    """Estimates how many steps the draft has before each sequence's next outcome.

    A tree has a fixed number of nodes. If the first steps of a round used them all, the tree would be broad
    and shallow, so the nodes are divided over the steps of a round. Knows times; does not know trees.
    """

    def __init__(self, sequences: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = np.zeros(sequences + 1)
        """When each sequence's latest outcome arrived."""
        self._seconds = np.zeros(sequences + 1)
        """Moving average of each sequence's rounds; 0: unknown."""
        self._has_begun = np.zeros(sequences + 1, np.bool_)
        """An outcome has arrived. Before the first one the target prefills the prompt."""
        self._usual, self._step = MovingAverage(_WEIGHT), MovingAverage(_WEIGHT)

    def enter(self, row: int) -> None:
        """Starts a new sequence with the usual duration of a round."""
        self._since[row], self._seconds[row] = self._clock(), self._usual.value
        self._has_begun[row] = False

    def note_outcome(self, row: int) -> None:
        now = self._clock()
        seconds = now - self._since[row]
        if self._has_begun[row] and seconds < self._step.value / 4:
            return  # Forced tokens are sent right behind an outcome: that is not a round.
        if self._has_begun[row] and 0 < seconds < _LONGEST_ROUND:
            self._usual.note(seconds)
            known = self._seconds[row]
            self._seconds[row] = moved_towards(known, seconds, _OWN_WEIGHT) if known else seconds
        self._since[row], self._has_begun[row] = now, True

    @property
    def step_seconds(self) -> float:
        """Usual duration of a step; 0: unknown."""
        return self._step.value or 0.0

    @property
    def steps_per_round(self) -> float:
        """How many steps fit into a usual round; 0: unknown."""
        return self._usual.value / self._step.value if self._step.value else 0.0

    def note_step(self, seconds: float) -> None:
        self._step.note(seconds)

    def steps_left(self) -> Longs:
        """For each row: steps until the next outcome, including the one that begins now. 1 if unknown."""
        left = self._seconds - (self._clock() - self._since)
        steps = np.ceil(left / (self._step.value or np.inf))
        return np.clip(steps, 1, _MAX_STEPS).astype(np.int64)


NOISES = ("philox", "murmur3")
"""The noises that this draft can reproduce."""


def check_noise(sampling: Sampling) -> None:
    """Raises ValueError if the target's choices depend on noise that this draft cannot reproduce."""
    if sampling.temperature > 0 and sampling.noise not in NOISES:
        raise ValueError(
            f"the target samples with the noise {sampling.noise!r}, and this draft supports "
            f"{', '.join(NOISES)}: use a draft of a version that supports it, or a temperature of 0"
        )


def sampling_params(sampling: Sampling) -> SamplingParams:
    """The request's parameters that decide tokens. Raises ValueError if they are out of bounds.

    Stop strings, log-probabilities and the number of tokens stay with the target and are not sent.
    """
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        min_tokens=sampling.min_tokens,
        max_tokens=None,
        logit_bias=dict(sampling.logit_bias),
    )


_SEED_MASK = 2**64 - 1


@dataclass(eq=False)
class DraftSession:
    """One sequence: its text and its parameters."""

    opening: Open
    max_len: int
    vocab_size: int = MAX_ID
    tenant: str = ""
    """Pays for its rows. Sessions of the same tenant share the KV blocks of common prefixes."""
    row: int = 0
    """Its row in the tables and the ledger; 0: none yet."""
    ledger: Ledger = field(default_factory=lambda: Ledger(0))

    def __post_init__(self) -> None:
        sampling = self.opening.sampling
        check_noise(sampling)
        self.params = sampling_params(sampling)
        self.seq, self.epoch = self.opening.seq, self.opening.epoch
        self.tokens: list[int] = unpack_ints(self.opening.tokens).tolist()
        self._repeats = Repeats(self.tokens)
        self._prompt = self.tokens[: self.opening.num_prompt]
        self._tally = Tally(self._prompt) if self.params.penalised else None
        self._seen: tuple[int, Longs, Longs] | None = None
        """Cached result of `seen`, and the length of the text that it is valid for."""

    @property
    def num_sent(self) -> int:
        return int(self.ledger.sent[self.row])

    @property
    def is_out_of_sync(self) -> bool:
        return bool(self.ledger.is_out_of_sync[self.row])

    @property
    def last_depth(self) -> int:
        # The target adds the last token itself, so the child of a node must come before that token.
        return min(2 * self.opening.lookahead + 1, self._most_tokens - 2 - len(self.tokens))

    @property
    def _most_tokens(self) -> int:
        return min(self.max_len, self.opening.max_len)

    def enter(self, ledger: Ledger, row: int) -> None:
        self.ledger, self.row = ledger, row
        ledger.enter(row, self.seq, self.epoch, len(self.tokens), self.opening.lookahead)

    def note_arrival(self, num_frames: int) -> None:
        """The engine has received this many frames."""
        arrived = self.ledger.arrived
        arrived[self.row] = max(int(arrived[self.row]), num_frames)

    def goes_on(self, n: int, tokens: Sequence[int]) -> bool:
        """Appends the n-th outcome if it is the next one. Returns whether it was.

        If an outcome is missing, the session is out of sync from then on.
        """
        ledger, row = self.ledger, self.row
        known = int(ledger.n[row])
        if n <= known or ledger.is_out_of_sync[row]:
            return False
        if n > known + 1:
            ledger.is_out_of_sync[row] = True
            return False
        self.tokens.extend(tokens)
        ledger.note_outcome(row, n, len(self.tokens))
        return True

    def guess(self, path: Sequence[int], most: int) -> Sequence[int]:
        """The tokens that followed when the text last ended like this path: they may follow again."""
        count = max(0, min(most, self.last_depth - len(path)))
        return self._repeats.guess(path, count)

    def seen(self) -> tuple[Longs, Longs]:
        """Tokens that penalties apply to, ascending, and how often each was generated."""
        if self._seen is None or self._seen[0] != len(self.tokens):
            tally = self._tally or Tally(self._prompt)
            ids, counts = tally.output_counts(History(self.tokens, len(self._prompt)))
            if self.params.repetition_penalty != 1.0:
                # Tokens that occur only in the prompt were never generated.
                others = tally.only_in_prompt(ids)
                ids, counts = np.concatenate((ids, others)), np.concatenate((counts, 0 * others))
                order = np.argsort(ids)
                ids, counts = ids[order], counts[order]
            self._seen = len(self.tokens), ids, counts
        return self._seen[1:]

    def write_to(self, forest: Forest, *, num_computed: int, calibration_part: int = 0) -> None:
        """Writes its row of the tables: a tree that has only a root.

        `calibration_part`: the number of its tenant's calibration counts.
        """
        xp, tables, shape = forest.xp, forest.tables, forest.shape
        row, sampling, params = self.row, self.opening.sampling, self.params
        length = len(self.tokens)
        tables.length[row], tables.num_computed[row] = length, num_computed
        tables.max_length[row], tables.max_depth[row] = self._most_tokens, 2 * self.opening.lookahead + 1
        tables.last_position[row] = length - 1 + self.last_depth
        tables.root_id[row], tables.next_id[row] = 0, 1
        # In one write each: on a device each write is a launch.
        last = range(max(0, length - shape.ring), length)
        ring = {position % shape.ring: self.tokens[position] for position in last}
        ends = [*sampling.end_ids, *[NO_TOKEN] * shape.ends][: shape.ends]
        tables.ring[row] = xp.of([ring.get(place, NO_TOKEN) for place in range(shape.ring)])
        tables.ends[row] = xp.of(ends)
        kind = int(not params.greedy)
        tables.vocab[row], tables.kind[row] = self.vocab_size, kind
        tables.calibration[row] = calibration_part * KINDS + kind
        tables.is_new[row] = True
        tables.seed[row] = int(np.uint64(sampling.seed & _SEED_MASK).view(np.int64))
        tables.is_murmur[row] = sampling.noise == "murmur3"
        tables.temperature[row] = 1.0 if params.greedy else params.temperature
        tables.top_k[row], tables.top_p[row] = params.top_k, params.top_p
        tables.log_min_p[row] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        tables.is_used[row], tables.ancestors[:, row] = False, 0
        tables.parted[:, row], tables.parted_rank[row] = -1, 0
        tables.position[row, shape.root] = length - 1
