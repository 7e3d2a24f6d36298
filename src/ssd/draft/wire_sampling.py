"""Sampling parameters on the wire: what a request's parameters become, and how the draft reads them.

Only what decides tokens travels; stops in text, log-probabilities and counts stay with the engine.
"""

from ssd.draft.messages import Sampling
from ssd.sampling import SamplingParams, SamplingRow

NOISES = ("philox",)
"""What this draft can foretell."""


def wire_sampling(row: SamplingRow, *, ratio: bool = False, saguaro: float = 1.0) -> Sampling:
    params = row.params
    return Sampling(
        seed=row.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        logit_bias=list(params.bias),
        end_ids=list(row.end_ids),
        bad_word_ids=[list(word) for word in row.bad_word_ids],
        ratio=ratio,
        saguaro=saguaro,
    )


def check_noise(sampling: Sampling) -> None:
    """ValueError where the target's choices depend on noise that this draft cannot foretell."""
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
