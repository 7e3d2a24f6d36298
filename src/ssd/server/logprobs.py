"""Log-probabilities in the formats of clients: OpenAI's completions and chat, vLLM's prompt_logprobs.

Knows how byte-level and sentencepiece vocabularies encode the bytes of a token.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from ssd.engine.outputs import RequestOutput
from ssd.engine.request import Request
from ssd.sampling import TokenLogprobs
from ssd.server.answers import ChatLogprobs, TextLogprobs, TokenLogprob, TopLogprob

MOST_PROMPT_SCORES = 1_000_000
"""Most prompt log-probabilities of one request; this many take about 60 MB of JSON."""
_LEAST = -9999.0
"""OpenAI's value for minus infinity, which JSON does not have."""
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE_PIECE = "\N{LOWER ONE EIGHTH BLOCK}"


class TokenTexts:
    """Text and bytes of single tokens. The bytes are exact; the text of part of a character is not."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._added = {int(token): str(added) for token, added in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in repr(backend.decoder)
        self._known: dict[int, bytes] = {}

    def text(self, token: int) -> str:
        return self.raw(token).decode("utf-8", errors="replace")

    def raw(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            return b""  # The model's vocabulary may be padded beyond the tokenizer's.
        if self._is_byte_level and all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        byte = _BYTE_PIECE.fullmatch(piece)
        if byte is not None:
            return bytes([int(byte.group(1), 16)])
        return str(piece).replace(_SPACE_PIECE, " ").encode()


def num_scores(outputs: Sequence[RequestOutput]) -> int:
    """Number of log-probabilities in a response: a measure of the time that encoding takes."""
    scored: list[tuple[Sequence[TokenLogprobs | None] | None, int]]
    scored = [(each.logprobs, 1) for output in outputs for each in output.outputs]
    scored += [(output.prompt_logprobs, len(output.outputs)) for output in outputs]
    return sum(
        times * (1 + len(entry.top))
        for entries, times in scored
        for entry in entries or ()
        if entry is not None
    )


def num_prompt_scores(requests: Iterable[Request]) -> int:
    """Number of prompt log-probabilities that a response would contain: each of `n` texts repeats its
    prompt's."""
    return sum(
        request.params.n * len(request.prompt_token_ids) * (1 + request.params.prompt_logprobs)
        for request in requests
        if request.params.prompt_logprobs is not None
    )


def text_logprobs(
    entries: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    texts: TokenTexts,
    *,
    num_top: int,
    offset: int = 0,
) -> TextLogprobs:
    """Format of /v1/completions. The first token of a prompt has no log-probability: its entry is None."""
    tokens = [texts.text(token) for token in token_ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return TextLogprobs(
        tokens=tokens,
        token_logprobs=[None if entry is None else _finite(entry.logprob) for entry in entries],
        top_logprobs=[_top(entry, texts) for entry in entries] if num_top else None,
        text_offset=offsets,
    )


def _top(entry: TokenLogprobs | None, texts: TokenTexts) -> dict[str, float] | None:
    if entry is None:
        return None
    # The chosen token comes last: two tokens may have the same text, and the likelier one is kept.
    pairs = [*entry.top, (entry.token, entry.logprob)]
    found: dict[str, float] = {}
    for token, logprob in pairs:
        found.setdefault(texts.text(token), _finite(logprob))
    return found


def chat_logprobs(entries: Sequence[TokenLogprobs], texts: TokenTexts) -> ChatLogprobs:
    return ChatLogprobs(content=[_chat_entry(entry, texts) for entry in entries])


def _chat_entry(entry: TokenLogprobs, texts: TokenTexts) -> TokenLogprob:
    def top(token: int, logprob: float) -> TopLogprob:
        return TopLogprob(token=texts.text(token), logprob=_finite(logprob), bytes=list(texts.raw(token)))

    return TokenLogprob(
        token=texts.text(entry.token),
        logprob=_finite(entry.logprob),
        bytes=list(texts.raw(entry.token)),
        top_logprobs=[top(token, logprob) for token, logprob in entry.top],
    )


def prompt_logprobs(
    entries: Sequence[TokenLogprobs | None], texts: TokenTexts
) -> list[dict[str, Any] | None]:
    """vLLM's format: for each prompt token a mapping from token ids to logprob, rank and text."""
    return [None if entry is None else _prompt_entry(entry, texts) for entry in entries]


def _prompt_entry(entry: TokenLogprobs, texts: TokenTexts) -> dict[str, Any]:
    ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(entry.top, 1)}
    ranked[entry.token] = (entry.logprob, entry.rank)
    return {
        str(token): {"logprob": _finite(logprob), "rank": rank, "decoded_token": texts.text(token)}
        for token, (logprob, rank) in ranked.items()
    }


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
