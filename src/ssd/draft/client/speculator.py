"""Decides what to propose, from which source, and how much: SSD for any target that verifies.

    verify ████ verify ████ verify ████        the target never stops
    draft  ▒▒▒▒ draft  ▒▒▒▒ draft  ▒▒▒▒        the draft grows a tree of what may come

The target says which requests begin and end, asks for proposals before a verification, reads while it
computes, and reports the outcomes after it. When a verification ends, the mirror's root moves along its
outcome and the next proposal is the best known path from there, without asking or waiting. A row whose token
the mirror does not know is a miss, and the backup decides what to propose for that row only.

Knows tokens, probabilities and times. Does not know runners, engines or sampling: the target verifies, and
every token is the target's own, so the draft may be slow, wrong or dead.
"""

import logging
import time
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, TypeVar

import msgspec

from ssd.config import TREE_SIZE, Backup
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import Sources
from ssd.draft.client.controller import AutoDisable, Controller
from ssd.draft.client.mirrors import Knowledge
from ssd.draft.client.proposals import NO_GRAMMARS, DraftedTokens, GrammarViews, TreeLimits
from ssd.draft.client.replica import PoolStats
from ssd.draft.protocol.messages import Sampling
from ssd.ngram import guess_after

RequestId = TypeVar("RequestId", bound=Hashable)

logger = logging.getLogger(__name__)


class Verified(msgspec.Struct, frozen=True):
    """The outcome of one sequence: accepted tokens, then the target's own; how many were proposed to it."""

    request_id: Hashable
    tokens: Sequence[int]
    num_drafted: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """Where a verification's tokens came from, for metrics and traces."""

    cause: str = "first"
    """What the mirror knew when the sequence's last verification ended: hit, late, unknown, unheard or first.
    """
    source: str = "none"
    """Where the drafted tokens came from: draft, ngram, grammar (forced tokens only) or none."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the latest proposals cost."""

    waited: float = 0.0
    """Seconds of waiting for the draft."""
    num_ready: int = 0
    """Sequences whose drafted tokens were known without waiting."""


class Origin(NamedTuple):
    """Where the drafted tokens of a proposal came from."""

    source: str
    """As in `Round`."""
    num_certain: int = 0
    """How many of the first ones the grammar forced: they say nothing about the draft."""


_NOWHERE, _FROM_DRAFT = Origin("none"), Origin("draft")


class Speculator:
    """Request ids may be anything hashable. Not safe for use by several threads."""

    def __init__(
        self,
        client: DraftClient,
        *,
        lookahead: int,
        backup: Backup = "auto",
        controller: Controller | None = None,
        num_trees: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`num_trees`: how many sequences of a verification may have trees; 0: chains only."""
        self.client = client
        self.controller = controller or Controller()
        self.proposed = Proposed()
        self._lookahead = lookahead
        self.num_trees = num_trees
        """May change between two proposals."""
        self._has_trees = False
        """Whether one of the latest proposals is a tree."""
        self._backup = backup
        self._clock = clock
        self._auto_disable = AutoDisable()
        self._knowledge: dict[Hashable, Knowledge] = {}
        """For each sequence, what was known when its last verification ended."""
        self._origins: dict[Hashable, Origin] = {}
        """Of the latest proposals that have tokens."""
        self._num_connects, self._num_frames = 0, 0
        self._silent_since = -1
        """Number of frames when waiting for the draft was last in vain; -1 if frames came since."""

    @property
    def stats(self) -> PoolStats:
        return replace(self.client.stats, is_resting=self.is_resting)

    @property
    def is_resting(self) -> bool:
        """Drafting is paused for a while: hardly any of its tokens was accepted."""
        return self._auto_disable.is_resting

    def start(self, timeout: float) -> None:
        """Starts connecting in the background; waits at most `timeout` seconds for a draft."""
        self.client.pool.start()
        self.client.pool.wait_until_ready(timeout)

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self.client

    def unknown_among(self, request_ids: Sequence[RequestId]) -> list[RequestId]:
        """The ids that `begin` was not called for."""
        return self.client.unknown_among(request_ids)

    def begin(
        self,
        request_id: Hashable,
        prompt: Sequence[int],
        output: Sequence[int],
        sampling: Sampling,
        max_len: int,
        *,
        draft_name: str = "",
    ) -> None:
        """Opens a session when the target starts a prompt, so that the draft prefills it at the same time.

        `max_len`: prompt and generated tokens together. `draft_name`: prefer drafts of this name; empty: any.
        A session that has this id is replaced.
        """
        self._forget_state(request_id)
        text = array("i", prompt)
        text.extend(output)
        self.client.follow(request_id, text, len(prompt), sampling, max_len, draft_name=draft_name)

    def forget(self, request_id: Hashable) -> None:
        """The request has ended, or was preempted and will begin again."""
        self._forget_state(request_id)
        self.client.forget(request_id)

    def take_in(self) -> None:
        """Call while a verification computes: reads what the draft has sent."""
        self.client.pool.read()

    def propose(
        self, request_ids: Sequence[Hashable], grammars: GrammarViews = NO_GRAMMARS
    ) -> list[DraftedTokens]:
        """For each sequence the tokens that are worth verifying next; empty where there is no guess.

        `grammars`: grammar states of the sequences that have a grammar.
        """
        self.client.pool.read()
        paths = self._paths(request_ids, grammars)
        num_ready, waited = sum(bool(path.tokens) for path in paths), 0.0
        # Rows that hit never wait for rows that miss.
        has_waited = not num_ready and (waited := self._wait(request_ids)) > 0
        if has_waited:
            paths = self._paths(request_ids, grammars)
        self.proposed = Proposed(waited, num_ready)
        pairs = zip(request_ids, paths, strict=True)
        self._origins = {each: _origin(path) for each, path in pairs if path.tokens}
        if self._backup in ("auto", "ngram"):
            paths = [self._or_guess(*each) for each in zip(request_ids, paths, strict=True)]
        chosen = self._worthwhile(paths)
        if has_waited and not any(path.tokens for path in chosen):
            # Waiting brought nothing that is worth verifying: count it against waiting.
            self.controller.note_firsts([False])
        self._has_trees = any(path.parents is not None for path in chosen)
        if grammars:
            offers = [*zip(request_ids, paths, strict=True)]
            self.client.send_forced([(each, path.tokens[: path.num_certain]) for each, path in offers])
        return chosen

    def seqs(self, request_ids: Sequence[Hashable]) -> list[int]:
        """For targets that choose tokens from the mirrors themselves: the `seq` of each, or -1.

        Requires the lock of the client's pool.
        """
        # Added to those of the step before, which is not settled yet and may have had other requests.
        self._origins.update(dict.fromkeys(request_ids, Origin("draft")))
        return self.client.seqs(request_ids)

    def settle(
        self, outcomes: Sequence[Verified], num_rows: int = 0, seconds: float | None = None
    ) -> list[Round]:
        """Sends outcomes to the draft; returns where each verification's tokens came from.

        `seconds`: how long the verification of `num_rows` query rows took; None where it prefilled prompts
        too.
        """
        if seconds is not None:
            is_speculating = any(each.num_drafted for each in outcomes)
            has_trees = is_speculating and self._has_trees
            self.controller.times.note(num_rows, seconds, is_speculating=is_speculating, has_trees=has_trees)
        has_spoken = self._has_new_frames()
        ids, texts = [each.request_id for each in outcomes], [each.tokens for each in outcomes]
        rounds, accepted, num_late = list[Round](), list[int](), 0
        firsts: dict[str, list[bool]] = {"draft": [], "ngram": []}
        knew, origins = map(self._knowledge.get, ids), self._origins
        for request_id, tokens, each, before in zip(ids, texts, outcomes, knew, strict=True):
            num_drafted, num_accepted = each.num_drafted, len(tokens) - 1
            source, certain = origins.get(request_id, _NOWHERE) if num_drafted else _NOWHERE
            if num_drafted > certain and source in firsts:
                firsts[source].append(num_accepted > certain)
            if source == "draft":
                accepted.append(max(0, num_accepted - certain))
            elif source != "grammar" and before in (Knowledge.HIT, Knowledge.UNKNOWN):
                accepted.append(0)
            num_late += before is Knowledge.LATE
            rounds.append(_round(before, source))
        self.controller.note_firsts(firsts["draft"])
        self.controller.note_guesses(firsts["ngram"])
        knowledge = self.client.outcomes([*zip(ids, texts, strict=True)])
        if not self._auto_disable.is_resting:
            self._knowledge.update(zip(ids, knowledge, strict=True))
            for unknown in self.client.unknown_among(ids):
                self._knowledge.pop(unknown, None)
        if has_spoken and (accepted or num_late):
            self._auto_disable.note_round(sum(accepted) / max(1, len(accepted)), was_late=not accepted)
        self._pause_or_resume()
        self.proposed = Proposed()
        return rounds

    def replace(self, sources: Sources) -> None:
        """Another draft takes over as soon as it is ready."""
        self.client.pool.replace(sources)

    def close(self) -> None:
        self.client.pool.close()

    def _forget_state(self, request_id: Hashable) -> None:
        self._knowledge.pop(request_id, None)
        self._origins.pop(request_id, None)

    def _has_new_frames(self) -> bool:
        """Starts AutoDisable anew after a reconnect. False: the draft has sent nothing since."""
        stats = self.client.stats
        if stats.num_connects != self._num_connects:
            self._auto_disable, self._num_connects = AutoDisable(), stats.num_connects
        has_spoken, self._num_frames = stats.num_frames > self._num_frames, stats.num_frames
        return has_spoken

    def _pause_or_resume(self) -> None:
        """Pauses drafting while hardly any token is accepted, and resumes it after a while."""
        self._auto_disable.note_step()
        if self._auto_disable.is_resting and not self.client.is_paused:
            logger.info("drafting is paused for a while: hardly any of its tokens is accepted")
            self.client.pause()
            self._knowledge.clear()
        elif self.client.is_paused and not self._auto_disable.is_resting:
            self.client.resume()

    def _paths(self, request_ids: Sequence[Hashable], grammars: GrammarViews) -> list[DraftedTokens]:
        trees = None
        if len(request_ids) <= self.num_trees:
            trees = TreeLimits(TREE_SIZE, self._lookahead, self.controller.least_chance(len(request_ids)))
        return self.client.paths(request_ids, self._lookahead, grammars, trees=trees)

    def _worthwhile(self, paths: Sequence[DraftedTokens]) -> list[DraftedTokens]:
        """Truncates each path to the number of tokens that yields most; trees become chains where those are
        faster."""
        if any(path.parents is not None for path in paths):
            chains = [path.chain() for path in paths]
            lengths, has_trees = self.controller.choose_form(
                [path.chances for path in paths], [path.chances for path in chains], len(paths)
            )
            paths = paths if has_trees else chains
        else:
            lengths = self.controller.choose([path.chances for path in paths], len(paths))
        return [path.cut(length) for path, length in zip(paths, lengths, strict=True)]

    def _wait(self, request_ids: Sequence[Hashable]) -> float:
        """Backup `jit`: waits for a draft step if no row has a speculation and it pays. Returns seconds."""
        awaited = [
            each for each in request_ids if self._knowledge.get(each) in (Knowledge.LATE, Knowledge.UNKNOWN)
        ]
        if not awaited or self._backup not in ("auto", "jit"):
            return 0.0
        stats = self.client.stats
        longest = self.controller.longest_wait(len(request_ids), stats.step_seconds)
        # After waiting in vain, do not wait again until the draft has sent something.
        if longest <= 0 or stats.num_frames == self._silent_since:
            return 0.0
        started, num_frames = self._clock(), stats.num_frames
        self.client.wait(awaited, longest)
        waited = self._clock() - started
        self._silent_since = num_frames if stats.num_frames == num_frames else -1
        self.controller.note_wait(waited)
        return waited

    def _or_guess(self, request_id: Hashable, path: DraftedTokens) -> DraftedTokens:
        if path.tokens:
            return path
        text, room = self.client.text_of(request_id)
        tokens = guess_after(text, min(room, self._lookahead))
        if not tokens:
            return path
        self._origins[request_id] = Origin("ngram")
        return DraftedTokens(tokens, self.controller.guess_chances(len(tokens)))


def _origin(path: DraftedTokens) -> Origin:
    if not path.num_certain:
        return _FROM_DRAFT
    return Origin("grammar" if path.num_certain == len(path.tokens) else "draft", path.num_certain)


@cache
def _round(before: Knowledge | None, source: str) -> Round:
    return Round(cause=before.value if before is not None else "first", source=source)
