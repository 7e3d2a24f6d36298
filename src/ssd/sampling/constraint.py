"""What a text may be, as callers ask for it, and what that leaves of the next token.

Knows masks over the vocabulary. Does not know grammars: whoever does (`engine/grammar.py`) says after
which tokens which others are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ssd.errors import InvalidRequestError

Allowed = NDArray[np.int32]
"""One bit for each token of the vocabulary, 32 to a number, lowest first."""

GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]
MAX_GRAMMAR_CHARS = 100_000


class GrammarError(InvalidRequestError):
    """A grammar that cannot be used; the message says why."""


class GrammarBusyError(GrammarError):
    """It could not be found out in time whether it can: later it may be."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """Which texts a caller wants: by a JSON schema, a regular expression, a JSON list of choices, or Lark."""

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise GrammarError(
                f"a grammar of kind {self.kind!r}: use one of {', '.join(get_args(GrammarKind))}"
            )
        if not isinstance(self.text, str) or len(self.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"a grammar is text of at most {MAX_GRAMMAR_CHARS} characters: shorten it")


class Place(Protocol):
    """Somewhere in a text that must keep to a grammar: at its end, or after tokens that are only guessed."""

    def mask(self) -> Allowed:
        """What may follow."""
        ...

    def only(self) -> int | None:
        """The token that must follow, where no other may."""
        ...

    def allows(self, token: int) -> bool:
        """Far cheaper than a mask, and now and then more generous."""
        ...

    def after(self, token: int) -> Place:
        """Behind a token that is allowed."""
        ...


class Constraint(Protocol):
    """A text under way that must keep to a grammar."""

    @property
    def problem(self) -> str:
        """Why nothing may follow, where that is not the text's fault; empty: it would be."""
        ...

    @property
    def most_drafted(self) -> int:
        """How many drafted tokens are worth the masks that verifying them takes."""
        ...

    def here(self) -> Place | None:
        """At its end, as long as nothing is added; None: nothing can follow."""
        ...

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        """What may follow now, and after each drafted token, up to the first one that is not allowed."""
        ...

    def num_allowed(self, drafted: Sequence[int]) -> int:
        """How many of these tokens, from the first, may follow."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """The tokens are decided."""
        ...


def allowed_tokens(masks: Sequence[Allowed], width: int) -> NDArray[np.bool_]:
    """Whether each token may stand [R, width], of masks of one length."""
    bits = np.unpackbits(np.stack(masks).view(np.uint8), axis=1, bitorder="little")[:, :width]
    # A row longer than its mask has padding at its end, which no text holds.
    return np.pad(bits, ((0, 0), (0, width - bits.shape[1]))).view(np.bool_)
