"""Speculative speculative decoding (SSD): the draft works ahead while the target verifies.

    verify ████ verify ████ verify ████        the target never stops
    draft  ▒▒▒▒ draft  ▒▒▒▒ draft  ▒▒▒▒        the draft grows a tree of what may come

When a verification ends, the mirror's root moves along its outcome and the next speculation is the
best known path from there: nothing is asked, nothing is waited for. A row whose token the mirror
does not know is a miss, and the backup decides, for that row only. Every token is the target's own
(see verification.py), so the draft may be slow, wrong or dead.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from ssd.config import Backup
from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.decoding.decoder import Decided, DecodeRow, DraftContext, DraftStep, Round, Speculation
from ssd.draft.client import DraftClient, LineSource, LineStats
from ssd.draft.controller import Controller
from ssd.draft.mirror import Knowledge, Path
from ssd.draft.ngram import ngram_guess
from ssd.draft.worth import Worth
from ssd.runtime.runner import AsyncRunner, Runner

logger = logging.getLogger(__name__)

_LOOK_UP_SECONDS = 0.0002
"""How often the end of a forward is looked for, and words of the draft."""


class ParallelDecoder(AutoregressiveDecoder):
    is_drafting = True

    def __init__(
        self,
        target: Runner,
        client: DraftClient,
        *,
        lookahead: int,
        backup: Backup = "auto",
        controller: Controller | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(target)
        self._lookahead = lookahead
        self._backup = backup
        self._clock = clock
        self._knowledge: dict[int, Knowledge] = {}
        """Of each sequence, what was known when its last verification ended."""
        self._sources: dict[int, str] = {}
        self._waited, self._num_ready = 0.0, 0
        self.client = client
        self.controller = controller or Controller()
        self._worth = Worth()
        self._num_connects, self._num_frames, self._has_spoken = 0, 0, False
        self._accepted: list[int] = []
        """Of each sequence in this step that the draft has spoken of: how many of its tokens."""

    @property
    def line_stats(self) -> LineStats:  # type: ignore[override]  # a constant None where there is no line
        return replace(self.client.stats)

    def begin(self, context: DraftContext) -> None:
        if not self._worth.is_resting:
            self.client.follow(context.seq_id, context.sampling, context.max_len)

    def propose(self, contexts: Sequence[DraftContext]) -> list[Speculation]:
        for context in contexts:
            self.begin(context)
        paths = self._paths(contexts)
        self._num_ready = sum(bool(path.tokens) for path in paths)
        # Rows that hit never wait for rows that miss.
        waited = not self._num_ready and self._wait(contexts)
        if waited:
            paths = self._paths(contexts)
        self._sources = {
            each.seq_id: "draft" for each, path in zip(contexts, paths, strict=True) if path.tokens
        }
        paths = [self._or_guess(each, path) for each, path in zip(contexts, paths, strict=True)]
        lengths = self.controller.choose([_chances(path) for path in paths], len(contexts))
        if waited and not any(lengths):
            # What is not even worth verifying was not worth waiting for either.
            self.controller.note_first(accepted=False)
        return [_speculation(path, length) for path, length in zip(paths, lengths, strict=True)]

    def step(self, rows: Sequence[DecodeRow], meanwhile: Callable[[], None] = lambda: None) -> list[Decided]:
        def read_too() -> None:
            meanwhile()
            self._read_while_computing()

        results = super().step(rows, read_too)
        self.times = replace(self.times, wait=self._waited, num_ready=self._num_ready)
        if all(row.generated for row in rows):
            self.controller.times.note(self.times.num_rows, self.times.verify)
        self._look_at_line()
        noted = [self._note(row, result) for row, result in zip(rows, results, strict=True)]
        self._let_rest()
        self.client.flush()
        self._waited, self._num_ready = 0.0, 0
        return noted

    def _read_while_computing(self) -> None:
        """What the draft says during a forward is in the mirrors when it ends."""
        self.client.poll()
        runner = self._runner
        if isinstance(runner, AsyncRunner):
            while not runner.is_done():
                time.sleep(_LOOK_UP_SECONDS)
                self.client.poll()

    def _look_at_line(self) -> None:
        """Another draft, or one that was started again, is judged anew; one that is silent not at all."""
        stats = self.client.stats
        if stats.num_connects != self._num_connects:
            self._worth, self._num_connects = Worth(), stats.num_connects
        self._has_spoken, self._num_frames = stats.num_frames > self._num_frames, stats.num_frames

    def _let_rest(self) -> None:
        """A draft that is never right is told nothing for a while, and then computes nothing."""
        accepted, self._accepted = self._accepted, []
        if accepted and self._has_spoken:
            self._worth.note_round(sum(accepted) / len(accepted))
        self._worth.note_step()
        if self._worth.is_resting and self._knowledge:
            logger.info("the draft rests for a while: hardly any of its tokens is accepted")
            self.client.forget_all()
            self._knowledge.clear()

    def idle(self) -> None:
        self.client.poll()

    def forget(self, seq_id: int) -> None:
        self._knowledge.pop(seq_id, None)
        self.client.forget(seq_id)

    def draft_steps(self) -> list[DraftStep]:
        return [DraftStep(*span) for span in self.client.take_step_spans()]

    def replace_draft(self, source: LineSource) -> None:
        self.client.replace(source)

    def close(self) -> None:
        self.client.close()

    def _paths(self, contexts: Sequence[DraftContext]) -> list[Path]:
        return [self.client.speculation(context.seq_id, self._lookahead) for context in contexts]

    def _wait(self, contexts: Sequence[DraftContext]) -> bool:
        """`jit`: waits for one draft step, if no row has anything to verify and it pays."""
        awaited = [
            each.seq_id
            for each in contexts
            if self._knowledge.get(each.seq_id) in (Knowledge.LATE, Knowledge.UNKNOWN)
        ]
        if not awaited or self._backup not in ("auto", "jit"):
            return False
        longest = self.controller.longest_wait(len(contexts), self.client.stats.step_seconds)
        if longest <= 0:
            return False
        started = self._clock()
        self.client.wait(awaited, longest)
        self._waited = self._clock() - started
        self.controller.note_wait(self._waited)
        return True

    def _or_guess(self, context: DraftContext, path: Path) -> Path:
        if path.tokens or self._backup not in ("auto", "ngram"):
            return path
        tokens = ngram_guess(context.sampling.prompt, context.sampling.output, self._lookahead)
        if tokens:
            self._sources[context.seq_id] = "ngram"
        rate = self.controller.ngram_rate
        return Path(tokens, tuple(rate ** (place + 1) for place in range(len(tokens))))

    def _note(self, row: DecodeRow, decided: Decided) -> Decided:
        """Tells the draft what came out, and the request how it went."""
        if row.sampling is None:
            return decided
        tokens = [token.token for token in decided.tokens]
        source = self._sources.get(row.seq_id, "none") if row.num_drafted else "none"
        if source == "draft":
            self.controller.note_first(accepted=len(tokens) > 1)
        elif source == "ngram":
            self.controller.note_ngram(accepted=len(tokens) > 1)
        before = self._knowledge.get(row.seq_id)
        if before not in (None, Knowledge.UNHEARD):
            self._accepted.append(len(tokens) - 1 if source == "draft" else 0)
        if not self._worth.is_resting:
            self._knowledge[row.seq_id] = self.client.outcome(row.seq_id, tokens)
        return Decided(decided.tokens, decided.prompt_logprobs, _round(before, source))


@cache
def _round(before: Knowledge | None, source: str) -> Round:
    return Round(cause=before.value if before is not None else "first", source=source)


def _chances(path: Path) -> Sequence[float]:
    """What the controller may know of each token when it decides where to cut.

    A token that was drawn must not be looked at before it is checked: its parent's chance stands for it.
    """
    return path.chances if path.proposals is None else (1.0, *path.chances[:-1])[: len(path.chances)]


def _speculation(path: Path, length: int) -> Speculation:
    proposals = None if path.proposals is None else path.proposals[:length]
    return Speculation(path.tokens[:length], proposals)
