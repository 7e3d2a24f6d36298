"""The records that go into and come out of the sampler. Data only.

A row is everything that decides one token: its own logits, its parameters, and the tokens before it. There is
no state beside it (a tally only spares counting). Drafted tokens extend `output`; rolling back means not
passing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ssd.sampling.constraint import Allowed, Constraint
from ssd.sampling.history import History
from ssd.sampling.params import SamplingParams
from ssd.sampling.tally import Tally


class SamplingRow(msgspec.Struct, frozen=True):
    """One position to decide."""

    params: SamplingParams
    seed: int  # resolved 64-bit seed of this sequence
    position: int  # absolute position of the token being decided = len(prompt) + len(output)
    prompt: Sequence[int]
    output: History
    end_ids: tuple[int, ...] = ()  # eos and stop ids, forbidden until min_tokens
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None  # what this text must keep to; it gives `allowed` for each position
    allowed: Allowed | None = None  # the tokens that may stand here; None: all
    tally: Tally | None = None  # what the sequence keeps for its penalties; None: counted anew


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model itself held a token, and its most likely ones, from the unprocessed logits."""

    token: int
    logprob: float
    rank: int  # 1 + the number of tokens with a larger logit
    top: tuple[tuple[int, float], ...]  # descending; equals by ascending id


class SampledToken(msgspec.Struct, frozen=True):
    """The decision for a row, with log-probabilities where its parameters ask for them."""

    token: int
    logprobs: TokenLogprobs | None
    is_void: bool = False
    """A grammar and what else is forbidden left nothing to choose: the token says nothing, the text ends."""
