"""One forward of the target that decides tokens, with or without drafted ones, in every mode.

The forward gives the target's logits z at the last known token and at each drafted one, so a token is decided
at each of these positions. Drafted tokens are accepted while they equal the decided ones:

    known: … x      drafted: s1 s2 s3      decided: y0 y1 y2 y3
    y0 = s1, y1 = s2, y2 ≠ s3   →   new tokens y0 y1 y2, outcome (2, y2)

Drafted tokens may be a tree (`draft/client/proposals.py`): then each node has its y, and the path continues
at the child whose token is y. A chain is a tree without siblings.

The token y is argmax(z/T + g): defined by the target's logits and the noise at that position alone (coupled
acceptance). Every emitted token is the target's own, so a draft can cost time but never change a token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Generic, TypeVar

from msgspec.structs import replace
from torch import Tensor

from ssd.config import TREE_SIZE
from ssd.decoding.rows import Decided, DecodeRow, PromptScoring, Speculation, VerifiedTree
from ssd.decoding.tree_slots import TreeSlots
from ssd.draft.client.proposals import (
    Parents,
    Tree,
    cut,
    depths_of,
    first_path,
    leaves_of,
    parents_of,
    path_to,
    subtree,
    walk,
)
from ssd.runtime.runner import InFlightStep, Runner
from ssd.sampling import (
    CoupledDecision,
    DecidedTokens,
    SampledToken,
    SamplingRow,
    TokenLogprobs,
    draw,
    draws_ahead,
    is_plain_draw,
    token_logprobs,
)
from ssd.sampling.constraint import Allowed, Constraint

T = TypeVar("T")
_NO_TREE_SLOTS = TreeSlots()


@dataclass(frozen=True, slots=True)
class _Deciding(Generic[T]):
    """A launched forward with the decision of its tokens queued behind it."""

    flight: InFlightStep[T]
    """Its result: the decisions, still on the device of the logits."""
    read: Callable[[T], list[Decided]]

    def is_done(self) -> bool:
        return self.flight.is_done()

    def collect(self) -> list[Decided]:
        """Waits for the end and returns what was decided."""
        return self.read(self.flight.collect())


def launch(
    runner: Runner, rows: Sequence[DecodeRow], tree_slots: TreeSlots = _NO_TREE_SLOTS
) -> InFlightStep[list[Decided]]:
    batch, decision = runner.batch(tree_slots.laid_out(rows)), _by_draws_alone(rows)
    if decision is not None:
        return _Deciding(runner.launch(batch, decision), partial(_accepted, rows))
    return _Deciding(runner.launch(batch, partial(_decide, rows)), partial(_read, rows))


def verify(
    runner: Runner, rows: Sequence[DecodeRow], tree_slots: TreeSlots = _NO_TREE_SLOTS
) -> list[Decided]:
    return launch(runner, rows, tree_slots).collect()


def _by_draws_alone(rows: Sequence[DecodeRow]) -> CoupledDecision | None:
    """The decision to run on the device, if logits, seeds and positions are all it needs; else None."""
    wanting = [(row.sampling, row) for row in rows if row.sampling is not None]
    if any(row.scoring is not None for row in rows) or not all(
        is_plain_draw(sampling) for sampling, _row in wanting
    ):
        return None
    if all(sampling.params.greedy for sampling, _row in wanting):
        return CoupledDecision(None)
    return CoupledDecision(draws_ahead([(sampling, _distances(row)) for sampling, row in wanting]))


def _accepted(rows: Sequence[DecodeRow], made: Tensor) -> list[Decided]:
    decided, found, first = made.tolist(), list[Decided](), 0
    for row in rows:
        last = first + row.num_decided
        places = _taken(row, decided[first:last])
        tokens = tuple([SampledToken(decided[first + place], None) for place in places])
        found.append(Decided(tokens, _tree(row, places)))
        first = last
    return found


def _taken(row: DecodeRow, decided: Sequence[int]) -> list[int]:
    """Which of the row's decided tokens are emitted, as indices."""
    return accepted_places(decided, row.drafted, row.parents) if decided else []


def _tree(row: DecodeRow, places: Sequence[int]) -> VerifiedTree | None:
    if row.parents is None or row.sampling is None:
        return None
    branch = tuple([place - 1 for place in places[1:]])
    return VerifiedTree(len(row.sampling.output), tuple(row.drafted), tuple(row.parents), branch)


@dataclass(frozen=True, slots=True)
class _Decisions:
    """A step whose rows need more than seeds: decided tokens, and the logits for prompts' scores."""

    logits: Tensor
    places: list[range]
    """For each row of the step: the rows of the logits that decide its tokens."""
    tokens: DecidedTokens | None


def _decide(rows: Sequence[DecodeRow], logits: Tensor) -> _Decisions:
    ends = list(accumulate(row.num_logits for row in rows))
    places = [range(end - row.num_decided, end) for end, row in zip(ends, rows, strict=True)]
    positions = [position for row in rows for position in decided_positions(row)]
    tokens = draw(_at(logits, places), positions) if positions else None
    return _Decisions(logits, places, tokens)


def _read(rows: Sequence[DecodeRow], made: _Decisions) -> list[Decided]:
    decided, outcomes, first = [] if made.tokens is None else made.tokens.read(), list[Decided](), 0
    for row, place in zip(rows, made.places, strict=True):
        mine = decided[first : first + row.num_decided]
        taken = _taken(row, [each.token for each in mine])
        scores = _score(row.scoring, made.logits, place.stop - row.num_logits)
        outcomes.append(Decided(tuple([mine[each] for each in taken]), _tree(row, taken), scores))
        first += row.num_decided
    return outcomes


def decided_positions(row: DecodeRow) -> list[SamplingRow]:
    """How to sample after the last known token, and after each drafted one as if its path were accepted."""
    if row.sampling is None:
        return []
    known, drafted = row.sampling, row.drafted
    paths = [[drafted[each] for each in path_to(row.parents, node)] for node in range(-1, row.num_drafted)]
    positions = [
        replace(known, position=known.position + len(path), output=known.output.followed_by(path))
        for path in paths
    ]
    if known.constraint is None:
        return positions
    masks = _masks(drafted, parents_of(row.parents, row.num_drafted), known.constraint)
    return [replace(row, allowed=mask) for row, mask in zip(positions, masks, strict=True)]


def _masks(drafted: Sequence[int], parents: Sequence[int], constraint: Constraint) -> list[Allowed | None]:
    """The masks after the text and after each node. None after a forbidden token: nothing is decided behind
    it."""
    found: list[Allowed | None] = [None] * (len(drafted) + 1)
    for leaf in leaves_of(parents) or [-1]:
        path = path_to(parents, leaf)
        masks = constraint.masks([drafted[node] for node in path])
        for node, mask in zip([-1, *path], masks, strict=False):
            found[node + 1] = mask
    return found


def _distances(row: DecodeRow) -> Sequence[int]:
    """The distance of each decided position from the text's end."""
    return [0, *depths_of(row.parents, row.num_drafted)]


def worth_verifying(
    speculation: Speculation, constraint: Constraint | None, *, may_branch: bool = True
) -> Tree:
    """The part of a speculation that the target verifies, if it fits into the step.

    Keeps the first path of a tree unless it `may_branch`, the nodes that the grammar allows, and as many of
    them as one sequence may have and their grammar masks are worth.
    """
    tokens, parents = _allowed(speculation, constraint)
    if not may_branch:
        tokens, parents = first_path(tokens, parents), None
    count = TREE_SIZE if constraint is None else min(TREE_SIZE, constraint.most_drafted)
    return cut(tokens, parents, count=count, depth=TREE_SIZE)


def _allowed(speculation: Speculation, constraint: Constraint | None) -> Tree:
    """The speculation, each path cut where the grammar forbids it: drafts do not know the grammar."""
    drafted, parents = speculation.tokens, speculation.parents
    if constraint is None:
        return drafted, parents
    if parents is None:
        return drafted[: constraint.num_allowed(drafted)], None
    return subtree(drafted, parents, _allowed_nodes(drafted, parents, constraint))


def _allowed_nodes(drafted: Sequence[int], parents: Sequence[int], constraint: Constraint) -> list[bool]:
    """Whether the grammar allows the path to each node; checks the path to each leaf."""
    allowed = [False] * len(drafted)
    for leaf in leaves_of(parents):
        path = path_to(parents, leaf)
        for node in path[: constraint.num_allowed([drafted[node] for node in path])]:
            allowed[node] = True
    return allowed


def accepted_places(decided: Sequence[int], drafted: Sequence[int], parents: Parents = None) -> list[int]:
    """Indices of the decided tokens to emit: the accepted ones, and the first that was not drafted."""
    return [0, *(node + 1 for node in walk(decided, drafted, parents))]


def _at(logits: Tensor, places: Sequence[range]) -> Tensor:
    """These rows of the logits; not copied if they are all of them, the usual case."""
    if sum(map(len, places)) == len(logits):
        return logits
    return logits[[place for each in places for place in each]]


def _score(scoring: PromptScoring | None, logits: Tensor, first: int) -> tuple[TokenLogprobs, ...]:
    if scoring is None or not scoring.tokens:
        return ()
    tokens = scoring.tokens
    return tuple(token_logprobs(logits[first : first + len(tokens)], tokens, scoring.num_top))
