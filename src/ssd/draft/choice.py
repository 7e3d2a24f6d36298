"""Which of several drafts gets a sequence: the one that knows its prefix, unless it has too much to do.

Every draft has a mark for every prefix, by a hash of the two (rendezvous hashing): the highest mark wins, so
texts that begin alike go to the same draft, whose KV cache then holds what they share, and a draft that comes
or goes moves only its own. A draft that has more than its share of the sequences is passed over (bounded
loads). Knows marks and counts; no contacts.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

import numpy as np

_PREFIX_TOKENS = 64
"""Tokens that texts of one kind have in common: a template, the beginning of a system prompt."""
_SLACK = 1.25
"""Times the mean load that a draft may have, and one sequence more, before it is passed over."""


class Candidate(Protocol):
    @property
    def name(self) -> str:
        """The same for every target, as long as it is the same draft."""
        ...

    @property
    def num_sequences(self) -> int: ...


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], tokens: Sequence[int]) -> C | None:
    """The favourite of this text among those that have no more than their share; None of none."""
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    most = _SLACK * sum(each.num_sequences for each in candidates) / len(candidates) + 1
    prefix = np.asarray(tokens[:_PREFIX_TOKENS], dtype=np.int32).tobytes()
    free = [each for each in candidates if each.num_sequences < most]
    return max(free, key=lambda each: _mark(each.name, prefix))


def _mark(name: str, prefix: bytes) -> bytes:
    return blake2b(prefix, digest_size=8, key=name.encode()[-64:]).digest()
