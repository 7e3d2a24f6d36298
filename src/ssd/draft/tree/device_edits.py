"""Edits logits on a device: penalties, biases, bad words and a minimum length.

Formulas and their order are those of `sampling/processors.py`, so that the draft guesses what the target will
decide. Each session's parameters are in tables; of each token of the vocabulary a table says how often the
text has it. A few limits bound the tables: what lies beyond them is not applied, which costs hits and changes
no token. Knows tables, rows and paths (device_runs.py); does not know sessions or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd.draft.tree.device_runs import RecentText
from ssd.draft.tree.tables import NO_TOKEN, Shape, Tables, TreeRows
from ssd.ngram import WINDOW

MOST_BIASES, MOST_WORDS, LONGEST_START = 64, 32, 8
"""Of a session: tokens with a bias; bad words, of one token or several; tokens of such a word before its
last."""
_GENERATED, _IN_PROMPT = 2, 1
"""What a token adds to the table: two each time that it was generated, and one if the prompt has it."""
_OUTSIDE = 1 << 40
"""Before a text's first token. No bad word has it."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The parameters of a session that depend on tokens."""

    prompt: NDArray[np.int64]
    written: NDArray[np.int64]
    penalties: tuple[float, float, float]
    """Repetition, frequency, presence."""
    biases: Sequence[tuple[int, float]]
    words: Sequence[Sequence[int]]
    min_tokens: int


class DeviceEdits:
    def __init__(
        self, shape: Shape, num_columns: int, head_tokens: Tensor | None, device: torch.device
    ) -> None:
        """`head_tokens`: the tokens of the logits' columns; None: all."""
        s = shape.sequences + 1
        self._num_columns = num_columns
        self.column_of: Tensor | None = None
        if head_tokens is not None:
            # One more than the last token: it stands for all that the head has not.
            self.column_of = torch.full((int(head_tokens[-1]) + 2,), num_columns, device=device)
            self.column_of[head_tokens] = torch.arange(num_columns, device=device)
        self.seen = torch.zeros(s, num_columns + 1, dtype=torch.int32, device=device)
        """By column; the last one is of tokens that have none."""
        self.is_edited = torch.zeros(s, dtype=torch.bool, device=device)
        self._penalties = torch.zeros(3, s, device=device)
        self._bias_columns = torch.zeros(s, MOST_BIASES, dtype=torch.long, device=device)
        self._biases = torch.zeros(s, MOST_BIASES, device=device)
        self._starts = torch.full((s, MOST_WORDS, LONGEST_START), NO_TOKEN, device=device)
        """Tokens of bad words before their last, latest first; −1: any."""
        self._lasts = torch.full((s, MOST_WORDS), num_columns, device=device)
        """Columns of the last tokens of bad words."""
        self._min_length = torch.zeros(s, dtype=torch.long, device=device)
        """Below it no end token may be next."""
        self._penalties[0] = 1.0
        self._back = torch.arange(LONGEST_START, device=device)
        self._never = torch.full((), -torch.inf, device=device)
        self._always = torch.full((), torch.inf, device=device)
        self._scratch = torch.full((), num_columns, device=device)
        self._outside = torch.full((), _OUTSIDE, device=device)

    def enter(self, row: int, rules: TokenRules) -> None:
        """Writes a session's rules to its row of the tables."""
        device = self.seen.device

        def up(values: object, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)

        self.is_edited[row] = True
        self.seen[row] = 0
        self.seen[row, self._columns(up(rules.prompt))] = _IN_PROMPT
        written = self._columns(up(rules.written))
        self.seen[row].index_add_(0, written, torch.full_like(written, _GENERATED, dtype=torch.int32))
        self._penalties[:, row] = up(rules.penalties, torch.float32)
        self._write_biases(row, [each for each in rules.biases if each[0] >= 0][:MOST_BIASES])
        words = [each for each in rules.words if 0 < len(each) <= LONGEST_START + 1][:MOST_WORDS]
        starts = np.full((MOST_WORDS, LONGEST_START), NO_TOKEN)
        for number, word in enumerate(words):
            starts[number, : len(word) - 1] = word[-2::-1]
        self._starts[row] = up(starts)
        self._lasts[row] = self._scratch
        if words:
            self._lasts[row, : len(words)] = self._columns(up([word[-1] for word in words]))
        self._min_length[row] = len(rules.prompt) + rules.min_tokens

    def leave(self, row: int) -> None:
        """From now on the row's logits stay as they are."""
        self.is_edited[row] = False
        self._penalties[0, row], self._penalties[1:, row] = 1.0, 0.0
        self._biases[row], self._min_length[row] = 0.0, 0
        self._lasts[row] = self._scratch

    def note_outcomes(self, count: Tensor, tokens: Tensor) -> None:
        """Counts decided tokens [S, K], of which each sequence has `count`."""
        is_token = torch.arange(tokens.shape[1], device=tokens.device) < count[:, None]
        columns = torch.where(is_token, self._columns(tokens), self._scratch)
        self.seen.scatter_add_(1, columns, torch.full_like(columns, _GENERATED, dtype=torch.int32))

    def apply(
        self, logits: Tensor, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText
    ) -> None:
        """Edits the logits of all rows in place: biases, then penalties, then forbidden tokens.

        `paths`: of all rows (`PathReader`).
        """
        sequence = rows.sequence
        logits.scatter_add_(1, self._bias_columns[sequence], self._biases[sequence])
        self._penalise(logits, sequence, paths)
        self._forbid(logits, tables, rows, paths, recent)

    def _write_biases(self, row: int, biases: Sequence[tuple[int, float]]) -> None:
        device = self.seen.device
        columns = self._columns(torch.tensor([token for token, _ in biases], dtype=torch.long).to(device))
        values = torch.tensor([value for _, value in biases], dtype=torch.float32).to(device)
        has = columns < self._num_columns
        self._bias_columns[row], self._biases[row] = 0, 0.0
        # A token without a column adds nothing to the first one.
        self._bias_columns[row, : len(biases)] = torch.where(has, columns, 0)
        self._biases[row, : len(biases)] = torch.where(has, values, 0.0)

    def _columns(self, tokens: Tensor) -> Tensor:
        """The columns of tokens; the last one for those that have none."""
        if self.column_of is None:
            is_known = (tokens >= 0) & (tokens < self._num_columns)
            return torch.where(is_known, tokens, self._scratch)
        last = len(self.column_of) - 1
        return self.column_of[torch.where(tokens >= 0, tokens.clamp(max=last), last)]

    def _penalise(self, logits: Tensor, sequence: Tensor, paths: Tensor) -> None:
        seen = self.seen[sequence]
        columns = torch.where(paths != NO_TOKEN, self._columns(paths), self._scratch)
        seen.scatter_add_(1, columns, torch.full_like(columns, _GENERATED, dtype=torch.int32))
        seen = seen[:, : self._num_columns]
        repetition, frequency, presence = (each.unsqueeze(1) for each in self._penalties[:, sequence])
        penalised = torch.where(logits > 0, logits / repetition, logits * repetition)
        penalised = torch.where(seen > 0, penalised, logits)
        count = (seen // _GENERATED).float()
        logits.copy_(penalised - frequency * count - presence * count.clamp(max=1.0))

    def _forbid(
        self, logits: Tensor, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText
    ) -> None:
        sequence = rows.sequence
        starts = self._starts[sequence]
        tails = self._tails(tables, rows, paths, recent)[:, None]
        is_ending = ((starts == tails) | (starts == NO_TOKEN)).all(2)
        ends = self._columns(tables.ends[sequence])
        is_early = (rows.position + 1 < self._min_length[sequence])[:, None]
        columns = torch.cat((self._lasts[sequence], ends), 1)
        is_forbidden = torch.cat((is_ending, is_early.expand_as(ends)), 1) & (columns < self._num_columns)
        # The least of −∞, and of ∞ for what is allowed: no column is written twice with different meaning.
        values = torch.where(is_forbidden, self._never, self._always)
        logits.scatter_reduce_(1, torch.where(is_forbidden, columns, 0), values, "amin")

    def _tails(self, tables: Tables, rows: TreeRows, paths: Tensor, recent: RecentText) -> Tensor:
        """The last tokens [W, LONGEST_START] up to and including each row's own, latest first."""
        sequence = rows.sequence
        position = rows.position[:, None] - self._back
        depth = position - tables.length[sequence][:, None]
        text = recent.tokens[sequence].gather(1, position % WINDOW)
        text = torch.where(position >= 0, text, self._outside)
        drafted = paths.gather(1, depth.clamp(0, paths.shape[1] - 1))
        return torch.where(depth >= 0, drafted, text)
