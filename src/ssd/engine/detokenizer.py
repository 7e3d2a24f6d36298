"""Turns tokens into text as they arrive.

A character may take several tokens, and a token's text may depend on the tokens before it. Releases text
once later tokens can no longer change it.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

_CONTEXT_TOKENS = 6
"""Prompt tokens decoded along with the first tokens: enough for rules about leading spaces."""
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 16
"""No character takes that many tokens, so text that is still incomplete then is released."""


class Detokenizer:
    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._decode_ids = _decoder(tokenizer)
        self._skip_special_tokens = skip_special_tokens
        self._window = list(prompt[-_CONTEXT_TOKENS:])
        self._num_released = len(self._window)
        """Tokens of the window whose text has been released."""

    def add(self, token: int) -> str:
        """The text this token releases; empty while a character is incomplete."""
        self._window.append(token)
        before, text = self._texts()
        num_held = len(self._window) - self._num_released
        if text.endswith(_INCOMPLETE) and num_held < _MOST_HELD:
            return ""
        return self._release(before, text)

    def flush(self) -> str:
        """The remaining text at the end, complete or not."""
        before, text = self._texts()
        return self._release(before, text)

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._window[: self._num_released]), self._decode(self._window)

    def _release(self, before: str, text: str) -> str:
        released = text[len(before) :]
        # Keep the tokens released last as context, unless they have no text.
        if released:
            self._window = self._window[self._num_released :]
        elif len(self._window) > _MOST_HELD:
            self._window = self._window[-_CONTEXT_TOKENS:]
        self._num_released = len(self._window)
        return released

    def _decode(self, tokens: list[int]) -> str:
        return self._decode_ids(tokens, skip_special_tokens=self._skip_special_tokens)


class TextByToken:
    """Divides the text of increments between their tokens."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], *, skip_special_tokens: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip_special_tokens)
        self._num_held = 0
        """Characters of earlier tokens that no increment has had: they may begin a stop string."""

    def divide(self, text: str, token_ids: Sequence[int]) -> list[str]:
        """One text for each token; joined they are `text`."""
        lengths = [len(self._detokenizer.add(token)) for token in token_ids]
        if not lengths:
            return []
        lengths[0] += self._num_held
        self._num_held = max(0, sum(lengths) - len(text))
        lengths[-1] += len(text)  # The last token also has the text that the end releases.
        ends = list(accumulate(lengths))
        return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _decoder(tokenizer: Any) -> Callable[..., str]:
    """The Rust tokenizer's decode if transformers adds nothing to it: takes a third of the time."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    adds_nothing = backend is not None and not getattr(tokenizer, "clean_up_tokenization_spaces", True)
    decode: Callable[..., str] = (backend if adds_nothing else tokenizer).decode
    return decode
