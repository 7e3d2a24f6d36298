"""Sampling as pure functions: parameters, processors, counter-based noise, decisions.

Knows logits and tokens. Does not know models, requests, tokenizers or drafts.
"""

from ssd.sampling.constraint import Grammar
from ssd.sampling.coupled import NOTHING, CoupledDecision, count_accepted, decide_tokens, emitted_tokens
from ssd.sampling.draws import Draws, Truncation
from ssd.sampling.history import History
from ssd.sampling.logprobs import token_logprobs
from ssd.sampling.noise import gumbel_noise_at, gumbel_noise_ragged
from ssd.sampling.params import SamplingParams
from ssd.sampling.processors import process_logits
from ssd.sampling.rows import SampledToken, SamplingRow, TokenLogprobs
from ssd.sampling.sampler import DecidedTokens, draw, draws_ahead, draws_of, is_plain_draw, sample
from ssd.sampling.seeds import mix_seed, seed_of, seed_tensor
from ssd.sampling.tally import Tally

__all__ = [
    "NOTHING",
    "CoupledDecision",
    "DecidedTokens",
    "Draws",
    "Grammar",
    "History",
    "SampledToken",
    "SamplingParams",
    "SamplingRow",
    "Tally",
    "TokenLogprobs",
    "Truncation",
    "count_accepted",
    "decide_tokens",
    "draw",
    "draws_ahead",
    "draws_of",
    "emitted_tokens",
    "gumbel_noise_at",
    "gumbel_noise_ragged",
    "is_plain_draw",
    "mix_seed",
    "process_logits",
    "sample",
    "seed_of",
    "seed_tensor",
    "token_logprobs",
]
