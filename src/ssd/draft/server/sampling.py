"""Reads a request's sampling parameters from the wire.

Only the parameters that decide tokens are sent: text stops, log-probabilities and counts stay with the
target.
"""

from ssd.draft.protocol.messages import Sampling
from ssd.sampling import SamplingParams

NOISES = ("philox",)
"""The noises that this draft can reproduce."""


def check_noise(sampling: Sampling) -> None:
    """ValueError where the target's choices depend on noise that this draft cannot reproduce."""
    depends = sampling.temperature > 0 and not sampling.ratio
    if depends and sampling.noise not in NOISES:
        raise ValueError(
            f"the target draws with the noise {sampling.noise!r}, and this draft knows {', '.join(NOISES)}: "
            "use a draft of a version that knows it, or a temperature of 0"
        )


def sampling_params(sampling: Sampling) -> SamplingParams:
    """The request's parameters as far as they decide tokens; ValueError where they are out of bounds."""
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
