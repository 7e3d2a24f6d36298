"""Makes requests from callers' prompts: text, token ids or chat messages.

Knows the tokenizer and the model's limits; draws the seed of a request without one.
"""

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssd.engine.grammar import Grammars
from ssd.engine.request import Request
from ssd.errors import InvalidRequestError
from ssd.sampling import SamplingParams

Prompt = str | Sequence[int]
"""Text, or token ids, which are used unchanged."""
Message = dict[str, Any]
"""A chat message as in OpenAI's API: role, content."""
_LONG_CHARACTERS = 16
"""Characters per token: a text below max_model_len times this is tokenised without a length check."""
_PIECE = 1 << 16
"""Characters tokenised at a time when checking whether a text is too long."""


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room for output tokens."""


@dataclass(frozen=True, slots=True)
class RequestFactory:
    tokenizer: Any
    end_ids: tuple[int, ...]
    vocab_size: int
    seeds: random.Random
    grammars: Grammars | None = None
    """Compiles a request's grammar before the engine gets it; None: the engine's process does."""
    max_model_len: int | None = None
    """A text that is far longer is refused before it is tokenised completely; None: no limit."""

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        speculation: bool = True,
        cache_key: str = "",
        group: str = "",
    ) -> Request:
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling parameters are SamplingParams(…), not {type(params).__name__}"
            )
        text = prompt if isinstance(prompt, str) else None
        ids = self._token_ids(prompt)
        self._check_ids(ids)
        params.check_vocabulary(self.vocab_size)
        if params.grammar is not None and self.grammars is not None:
            self.grammars.prepare(params.grammar)
        return Request(
            request_id=request_id or uuid.uuid4().hex,
            prompt=text,
            prompt_token_ids=tuple(ids),
            params=params,
            seed=self.seeds.getrandbits(64) if params.seed is None else params.seed,
            end_ids=self.end_ids,
            bad_word_ids=self._bad_word_ids(params.bad_words),
            speculation=speculation,
            cache_key=cache_key,
            group=group,
        )

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.encoded(prompt)
        if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
            return [int(token) for token in prompt]
        raise InvalidRequestError(f"a prompt is text or a list of token ids, not {prompt!r:.60}")

    def encoded(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. PromptTooLongError: it is far longer than any prompt may be."""
        try:
            self._refuse_far_too_long(text)
            ids: list[int] = self.tokenizer(text, add_special_tokens=add_special_tokens).input_ids
        except TypeError as error:
            raise InvalidRequestError(f"the prompt {text[:40]!r} is not valid Unicode text") from error
        return ids

    def _refuse_far_too_long(self, text: str) -> None:
        """Tokenises in pieces and refuses beyond twice the limit: cutting a text can add a few tokens."""
        if self.max_model_len is None or len(text) <= _LONG_CHARACTERS * self.max_model_len:
            return
        num_tokens = 0
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            num_tokens += len(self.tokenizer(piece, add_special_tokens=False).input_ids)
            if num_tokens > 2 * self.max_model_len:
                raise PromptTooLongError(
                    f"the prompt has {len(text)} characters, and prompt and output together at most "
                    f"{self.max_model_len} tokens: shorten the prompt"
                )

    def chat_prompt(self, messages: Sequence[Message], **template_options: Any) -> list[int]:
        """Token ids of a conversation; `template_options` (tools, …) are for the model's chat template."""
        # The template already contains the tokens that the tokenizer would add at the start.
        return self.encoded(self.chat_text(messages, **template_options), add_special_tokens=False)

    def chat_text(self, messages: Sequence[Message], **template_options: Any) -> str:
        """A conversation rendered by the model's chat template."""
        self.check_chat(messages)
        options = {"add_generation_prompt": True, **template_options}
        text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
        return text

    def check_chat(self, messages: Sequence[Message]) -> None:
        """InvalidRequestError if the messages are malformed or the tokenizer has no chat template."""
        if isinstance(messages, str) or not all(
            isinstance(message, dict) and "role" in message for message in messages
        ):
            raise InvalidRequestError(
                'a conversation is a list of messages such as {"role": "user", "content": "Hi"}'
            )
        if not self.tokenizer.chat_template:
            raise InvalidRequestError(
                "this model's tokenizer has no chat template: use generate with plain text"
            )

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise InvalidRequestError("the prompt has no tokens: pass some text or token ids")
        wrong = [token for token in ids if not 0 <= token < self.vocab_size]
        if wrong:
            raise InvalidRequestError(f"token id {wrong[0]} is outside the vocabulary of {self.vocab_size}")

    def _bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Token ids of each word at the start of a text and after a space, which usually differ."""
        spellings = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
        encoded = [
            tuple(self.tokenizer(spelling, add_special_tokens=False).input_ids) for spelling in spellings
        ]
        return tuple(dict.fromkeys(ids for ids in encoded if ids))
