"""Sampling as pure functions: parameters, processors, counter-based noise, the draw, ratio acceptance.

Knows logits and tokens. Does not know models, requests, tokenizers, or who drafts.
"""

from ssd.sampling.chooser import Chooser, ChooserOf, PhiloxChooser, Stream
from ssd.sampling.constraint import Grammar
from ssd.sampling.history import History
from ssd.sampling.logprobs import token_logprobs
from ssd.sampling.noise import gumbel_noise, gumbel_noise_at, gumbel_noise_ragged, mix_seed
from ssd.sampling.params import SamplingParams
from ssd.sampling.processors import process_logits
from ssd.sampling.ratio import DraftDistribution, Proposal
from ssd.sampling.rows import SampledToken, SamplingRow, TokenLogprobs
from ssd.sampling.sampler import decide_plain, is_plain, sample

__all__ = [
    "Chooser",
    "ChooserOf",
    "DraftDistribution",
    "Grammar",
    "History",
    "PhiloxChooser",
    "Proposal",
    "SampledToken",
    "SamplingParams",
    "SamplingRow",
    "Stream",
    "TokenLogprobs",
    "decide_plain",
    "gumbel_noise",
    "gumbel_noise_at",
    "gumbel_noise_ragged",
    "is_plain",
    "mix_seed",
    "process_logits",
    "sample",
    "token_logprobs",
]
