"""The host's side of one sequence: its text, its place in the order of outcomes and frames, its parameters.

Trees are in tables; here is what a table cannot hold or what others ask for. Knows no model and no sockets.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ssd.draft.ngram import Repeats
from ssd.draft.protocol.messages import MAX_ID, Drawn, Open, pack_floats, pack_ints, unpack_ints
from ssd.draft.server.ledger import Ledger, Longs
from ssd.draft.server.sampling import check_noise, sampling_params
from ssd.draft.tree.tables import KINDS, NO_TOKEN, Shape, Tables, kind_of
from ssd.sampling import History, SamplingRow, Tally, mix_seed
from ssd.sampling.ratio import DraftDistribution

_MASK = 2**64 - 1


@dataclass(eq=False)
class DraftSession:
    opening: Open
    max_len: int
    vocab_size: int = MAX_ID
    tenant: str = ""
    """Who pays for it, and shares what is read of it."""
    row: int = 0
    """In the tables; 0: not yet there."""
    ledger: Ledger = field(default_factory=lambda: Ledger(0))
    """What is counted of it, at its row."""
    drawn_from: dict[int, DraftDistribution] = field(default_factory=dict)
    """By the id of a processed node: what its first child was drawn from."""

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
        """Of which length of the text, and what `seen` found then."""

    @property
    def draws(self) -> bool:
        """Whether guesses are drawn (ratio acceptance) rather than ranked by the request's noise."""
        return self.opening.sampling.ratio and not self.params.greedy

    @property
    def num_sent(self) -> int:
        return int(self.ledger.sent[self.row])

    @property
    def is_out_of_sync(self) -> bool:
        return bool(self.ledger.is_out_of_sync[self.row])

    @property
    def last_depth(self) -> int:
        # The target adds the last token itself, so what follows a node must lie before that.
        return min(2 * self.opening.lookahead + 1, self._most_tokens - 2 - len(self.tokens))

    @property
    def _most_tokens(self) -> int:
        return min(self.max_len, self.opening.max_len)

    def enter(self, ledger: Ledger, row: int) -> None:
        self.ledger, self.row = ledger, row
        ledger.enter(row, self.seq, self.epoch, len(self.tokens), self.opening.lookahead)

    def note_arrival(self, num_frames: int) -> None:
        arrived = self.ledger.arrived
        arrived[self.row] = max(int(arrived[self.row]), num_frames)

    def goes_on(self, n: int, tokens: Sequence[int]) -> bool:
        """Whether the n-th outcome is the next one, which is taken; where one is missing it is torn."""
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
        """What followed when the text last ended as it would behind this path."""
        count = max(0, min(most, self.last_depth - len(path)))
        return self._repeats.guess(path, count)

    def drawn(self, parents: Iterable[int]) -> list[Drawn]:
        return [
            Drawn(self.seq, parent, pack_ints(q.token_ids), pack_floats(q.weights))
            for parent in parents
            if (q := self.drawn_from.get(parent)) is not None
        ]

    def forget_drawn(self, root_id: int) -> None:
        """What lies before the root is lost, or decided."""
        self.drawn_from = {node: q for node, q in self.drawn_from.items() if node >= root_id}

    def node_seed(self, node_id: int) -> int:
        """For choices at this node alone: branches must not learn of each other's draws."""
        return mix_seed(self.opening.sampling.seed, node_id + 1)

    def sampling_row(self, path: Sequence[int]) -> SamplingRow:
        """How the token is decided that follows the text and a path behind it."""
        sampling = self.opening.sampling
        known = History(self.tokens, len(self._prompt))
        return SamplingRow(
            params=self.params,
            seed=sampling.seed,
            position=len(self.tokens) + len(path),
            prompt=self._prompt,
            output=known.followed_by(path) if path else known,
            end_ids=tuple(sampling.end_ids),
            bad_word_ids=tuple(map(tuple, sampling.bad_word_ids)),
            tally=self._tally,
        )

    def seen(self) -> tuple[Longs, Longs]:
        """Tokens that penalties concern, ascending, and how often each was written."""
        if self._seen is None or self._seen[0] != len(self.tokens):
            tally = self._tally or Tally(self._prompt)
            ids, counts = tally.written(History(self.tokens, len(self._prompt)))
            if self.params.repetition_penalty != 1.0:
                # Those of the prompt alone were written no times.
                others = tally.only_in_prompt(ids)
                ids, counts = np.concatenate((ids, others)), np.concatenate((counts, 0 * others))
                order = np.argsort(ids)
                ids, counts = ids[order], counts[order]
            self._seen = len(self.tokens), ids, counts
        return self._seen[1:]

    def write_to(
        self, tables: Tables, shape: Shape, *, num_read: int, is_drawn: bool, calibration_part: int = 0
    ) -> None:
        """Writes its row: a root of which nothing is known but its token.

        `calibration_part`: the number of its tenant's counts.
        """
        row, sampling, params = self.row, self.opening.sampling, self.params
        length = len(self.tokens)
        tables.length[row], tables.num_read[row] = length, num_read
        tables.max_length[row], tables.max_depth[row] = self._most_tokens, 2 * self.opening.lookahead + 1
        tables.last_position[row] = length - 1 + self.last_depth
        tables.root_id[row], tables.next_id[row] = 0, 1
        for position in range(max(0, length - shape.ring), length):
            tables.ring[row, position % shape.ring] = self.tokens[position]
        for place in range(shape.ends):
            ends = sampling.end_ids
            tables.ends[row, place] = ends[place] if place < len(ends) else NO_TOKEN
        kind = kind_of(params, draws=self.draws)
        tables.vocab[row], tables.kind[row] = self.vocab_size, kind
        tables.calibration[row] = calibration_part * KINDS + kind
        tables.is_drawn[row], tables.is_new[row] = is_drawn, True
        tables.seed[row] = int(np.uint64(sampling.seed & _MASK).view(np.int64))
        tables.temperature[row] = 1.0 if params.greedy else params.temperature
        tables.top_k[row], tables.top_p[row] = params.top_k, params.top_p
        tables.log_min_p[row] = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
        tables.is_used[row], tables.ancestors[:, row] = False, 0
        tables.parted[:, row], tables.parted_rank[row] = -1, 0
        tables.position[row, shape.root] = length - 1
