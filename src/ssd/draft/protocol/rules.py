"""What may be said of one sequence, in OPEN and in an entry of OUTCOME: both ends ask here.

The target checks before it sends a sequence, the draft before it accepts one. What breaks a rule
costs that sequence its drafts and nobody else anything; frames that cannot be read are codec.py's. Knows
messages; no sockets, no clock, no torch.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from ssd.draft.protocol.messages import (
    MAX_ID,
    MAX_LIST,
    MAX_TEXT,
    MAX_TOKENS,
    Open,
    Outcome,
    Sampling,
    unpack_ints,
)

MAX_BAD_WORD_TOKENS = 8 * MAX_LIST
"""Of all words together: the draft looks for each of them at every node."""
MAX_LOOKAHEAD = 64
MAX_BIAS = 100.0
RANGES = {
    "seed": (0, 2**64 - 1),
    "temperature": (0.0, 1000.0),
    "top_k": (0, MAX_ID),
    "top_p": (5e-324, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "min_tokens": (0, MAX_ID),
    "saguaro": (5e-324, 1.0),
}
"""Of each number of Sampling the least and the largest: those of ssd.sampling.SamplingParams."""

_sampling_decoder = msgspec.msgpack.Decoder(Sampling)


class UnsendableError(ValueError):
    """Sampling parameters that cannot be sent to a draft."""


def sendable(sampling: Sampling, vocab_size: int) -> Sampling:
    """The parameters in the form that may be sent to a draft with this vocabulary.

    Entries for tokens that the draft lacks are left out, since it never guesses them, and so are end ids and
    bad words beyond what a message holds: a guess may then be wrong. UnsendableError where the rest breaks a
    rule.
    """
    try:
        kept = msgspec.structs.replace(
            sampling,
            logit_bias=[each for each in sampling.logit_bias if 0 <= each[0] < vocab_size],
            end_ids=[each for each in sampling.end_ids if 0 <= each < vocab_size][:MAX_LIST],
            bad_word_ids=_fitting_words(sampling.bad_word_ids, vocab_size),
        )
        # Encode now: an error later would cost the other sequences of the frame as well.
        kept = _sampling_decoder.decode(msgspec.msgpack.encode(kept))
    except (msgspec.MsgspecError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise UnsendableError(f"its parameters cannot be sent: {error}") from error
    fault = fault_of_sampling(kept, vocab_size)
    if fault:
        raise UnsendableError(fault)
    return kept


def _fitting_words(words: Iterable[list[int]], vocab_size: int) -> list[list[int]]:
    kept, left = list[list[int]](), MAX_BAD_WORD_TOKENS
    for word in words:
        if not word or min(word) < 0 or max(word) >= vocab_size:
            continue
        if len(kept) == MAX_LIST or len(word) > left:
            break
        kept.append(word)
        left -= len(word)
    return kept


def fault_of_sampling(sampling: Sampling, vocab_size: int) -> str:
    """What is wrong with the parameters of a sequence; empty: nothing."""
    for name, (least, most) in RANGES.items():
        # NaN fails the comparison.
        if not least <= getattr(sampling, name) <= most:
            return f"{name}={getattr(sampling, name)} is not in {least:g}…{most:g}"
    for name in ("logit_bias", "end_ids", "bad_word_ids"):
        if len(getattr(sampling, name)) > MAX_LIST:
            return f"{len(getattr(sampling, name))} {name}: at most {MAX_LIST} are taken"
    if len(sampling.noise) > MAX_TEXT:
        return f"the name of its noise is longer than {MAX_TEXT} characters"
    words = [token for word in sampling.bad_word_ids for token in word]
    if len(words) > MAX_BAD_WORD_TOKENS:
        return f"{len(words)} tokens of bad words: at most {MAX_BAD_WORD_TOKENS} are taken"
    if not all(-MAX_BIAS <= bias <= MAX_BIAS for _token, bias in sampling.logit_bias):
        return f"a bias is not in {-MAX_BIAS:g}…{MAX_BIAS:g}"
    named = [token for token, _bias in sampling.logit_bias] + words
    if named and (min(named) < 0 or max(named) >= vocab_size):
        return "logit_bias or bad_word_ids name a token that is not in the vocabulary"
    if sampling.end_ids and (min(sampling.end_ids) < 0 or max(sampling.end_ids) > MAX_ID):
        return f"an end id is not in 0…{MAX_ID}"
    return ""


def without_foreign_ends(message: Open, vocab_size: int) -> Open:
    """Without end ids that the draft lacks: older engines send them, and nothing ends with them."""
    ends = [each for each in message.sampling.end_ids if each < vocab_size]
    if len(ends) == len(message.sampling.end_ids):
        return message
    sampling = msgspec.structs.replace(message.sampling, end_ids=ends)
    return msgspec.structs.replace(message, sampling=sampling)


def fault_of_opening(message: Open, vocab_size: int) -> str:
    """Why a draft cannot take the sequence in; empty: it can, as far as the message says."""
    packed = message.tokens
    if not packed or len(packed) % 4 or len(packed) // 4 > MAX_TOKENS:
        return f"a text of 1 to {MAX_TOKENS} tokens is taken"
    tokens = unpack_ints(packed)
    if not (tokens.view(np.uint32) < vocab_size).all():
        return "its text holds a token that is not in the vocabulary"
    if not 0 <= message.num_prompt <= len(tokens):
        return "its prompt is longer than its text"
    if not 0 <= message.max_len <= MAX_ID:
        return f"max_len={message.max_len} is not in 0…{MAX_ID}"
    if not 1 <= message.lookahead <= MAX_LOOKAHEAD:
        return f"lookahead={message.lookahead} is not in 1…{MAX_LOOKAHEAD}"
    return fault_of_sampling(message.sampling, vocab_size)


def faults_of_outcome(message: Outcome, vocab_size: int) -> dict[int, str]:
    """Of the entries that break a rule, by their places: what is wrong."""
    heads, tokens = message.columns(), unpack_ints(message.tokens)
    faults = dict[int, str]()
    numbers = np.maximum(heads.n.view(np.uint64), heads.num_frames.view(np.uint64))
    strange = tokens.view(np.uint32) >= vocab_size
    if strange.any():
        owners = np.arange(len(heads.seq)).repeat(heads.num_tokens)
        faults.update(dict.fromkeys(owners[strange].tolist(), "an outcome's token is not in the vocabulary"))
    for wrong, reason in (
        (numbers > MAX_ID, f"an outcome's number is not in 0…{MAX_ID}"),
        ((heads.num_tokens < 1) | (heads.num_tokens > MAX_LIST), f"an outcome has 1 to {MAX_LIST} tokens"),
    ):
        if wrong.any():
            faults.update(dict.fromkeys(np.flatnonzero(wrong).tolist(), reason))
    return faults
