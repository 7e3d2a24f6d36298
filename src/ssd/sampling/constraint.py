"""Grammars of requests, and the interface of constraints on the next token.

Knows masks over the vocabulary. Does not know which tokens a grammar allows: `engine/grammar.py` implements
the interface.
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
    """The grammar was not compiled in time; another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """The set of allowed texts: a JSON schema, a regular expression, a JSON list of choices, or Lark."""

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise GrammarError(
                f"a grammar of kind {self.kind!r}: use one of {', '.join(get_args(GrammarKind))}"
            )
        if not isinstance(self.text, str) or len(self.text) > MAX_GRAMMAR_CHARS:
            raise GrammarError(f"a grammar is text of at most {MAX_GRAMMAR_CHARS} characters: shorten it")


class GrammarState(Protocol):
    """A text's position in its grammar: at the text's end, or after drafted tokens."""

    def mask(self) -> Allowed:
        """The tokens that may follow."""
        ...

    def only(self) -> int | None:
        """The only token that may follow; None if there are several or none."""
        ...

    def allows(self, token: int) -> bool:
        """Whether a token may follow. Far cheaper than a mask, and sometimes more permissive."""
        ...

    def after(self, token: int) -> GrammarState:
        """The state after an allowed token."""
        ...


class Constraint(Protocol):
    """Follows a growing text that must satisfy a grammar."""

    @property
    def problem(self) -> str:
        """Why no token is allowed, if the text is not the reason; else empty."""
        ...

    @property
    def most_drafted(self) -> int:
        """Maximum number of drafted tokens for which computing masks is worth the time."""
        ...

    def state(self) -> GrammarState | None:
        """The state at the text's end, valid until `advance`; None: no token can follow."""
        ...

    def masks(self, drafted: Sequence[int]) -> list[Allowed]:
        """Masks at the text's end and after each drafted token, up to the first that is not allowed."""
        ...

    def num_allowed(self, drafted: Sequence[int]) -> int:
        """How many of these tokens, from the first, are allowed."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Appends decided tokens to the text."""
        ...


def allowed_tokens(masks: Sequence[Allowed], width: int) -> NDArray[np.bool_]:
    """Whether each token is allowed [R, width], from masks of equal length."""
    bits = np.unpackbits(np.stack(masks).view(np.uint8), axis=1, bitorder="little")[:, :width]
    # Columns beyond a mask are padding of the vocabulary: never allowed.
    return np.pad(bits, ((0, 0), (0, width - bits.shape[1]))).view(np.bool_)
