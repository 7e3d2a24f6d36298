"""The sampler's inputs and outputs. Data only.

A token depends only on its row (logits, parameters, the tokens before it); the sampler has no other state,
and a tally only saves counting. Drafted tokens are appended to `output`; rolling back means to omit them.
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
    constraint: Constraint | None = None  # the text's grammar; `allowed` comes from it
    allowed: Allowed | None = None  # the tokens that are allowed at this position; None: all
    tally: Tally | None = None  # the sequence's token counts, for penalties; None: counted again


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of a token and of the most likely tokens, from the unprocessed logits."""

    token: int
    logprob: float
    rank: int  # 1 + the number of tokens with a larger logit
    top: tuple[tuple[int, float], ...]  # descending; equal ones by ascending id


class SampledToken(msgspec.Struct, frozen=True):
    """The decision for a row, with log-probabilities if requested."""

    token: int
    logprobs: TokenLogprobs | None
    is_void: bool = False
    """No token was allowed by the grammar and the other processors: ignore the token, end the text."""
