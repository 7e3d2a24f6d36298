"""Converts request bodies to the engine's prompts and sampling parameters.

Knows the server's limits. Error messages start with the parameter (`n=99: …`).
"""

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ssd.config.server import ServerConfig
from ssd.engine.prompts import Message, Prompt
from ssd.errors import InvalidRequestError
from ssd.sampling import SamplingParams
from ssd.server.schemas import ChatCompletionRequest, ChatMessage, CompletionRequest, GenerationRequest

_PLAIN = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "stop", "stop_token_ids", "min_tokens", "max_tokens", "ignore_eos"),
    *("bad_words", "prompt_logprobs", "skip_special_tokens", "include_stop_str_in_output", "n", "draft"),
)
"""Fields with the same name in SamplingParams."""
_THEIR_TEMPLATE_OPTIONS = {"add_generation_prompt", "continue_final_message"}
_OWN_TEMPLATE_OPTIONS = {
    "messages",
    *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
} - _THEIR_TEMPLATE_OPTIONS
"""Arguments of apply_chat_template that clients must not set."""


def completion_params(body: CompletionRequest, limits: ServerConfig) -> SamplingParams:
    extra: dict[str, Any] = {"logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        extra["prompt_logprobs"] = body.logprobs
    if body.only_scores:
        extra["max_tokens"] = 1  # The engine's minimum; the token is removed from the answer.
    return _params(body, limits, extra)


def chat_params(body: ChatCompletionRequest, limits: ServerConfig) -> SamplingParams:
    extra: dict[str, Any] = {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    # Two names of one limit: if both are given, the smaller one applies.
    limited = [each for each in (body.max_tokens, body.max_completion_tokens) if each is not None]
    extra["max_tokens"] = min(limited, default=None)
    _check_limit("top_logprobs", extra["logprobs"], limits.max_logprobs)
    return _params(body, limits, extra)


def _params(body: GenerationRequest, limits: ServerConfig, extra: dict[str, Any]) -> SamplingParams:
    given = {name: value for name in _PLAIN if (value := getattr(body, name)) is not None}
    given.update(extra)
    if body.top_p == 0:
        given.update(top_p=1.0, top_k=1)  # Greedy, which is the limit of top_p towards 0.
    if body.stop is not None:
        given["stop"] = [each for each in _listed(body.stop) if each]
    if body.logit_bias is not None:
        given["logit_bias"] = _bias(body.logit_bias)
    _check_limit("n", given.get("n"), limits.max_n)
    _check_limit("logprobs", given.get("logprobs"), limits.max_logprobs)
    _check_limit("prompt_logprobs", given.get("prompt_logprobs"), limits.max_logprobs)
    if isinstance(body.stop, list) and len(body.stop) > limits.max_stop:
        raise InvalidRequestError(
            f"stop={len(body.stop)} strings: this server takes at most {limits.max_stop}"
        )
    return SamplingParams(**given)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _check_limit(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise InvalidRequestError(f"{name}={value}: this server takes at most {most}")


def _bias(given: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise InvalidRequestError("logit_bias=…: keys must be token ids") from None


def completion_prompts(
    body: CompletionRequest, limits: ServerConfig, check_length: Callable[[int], None]
) -> list[Prompt]:
    """The prompts, each text or token ids. Their number is checked before their content."""
    given = body.prompt
    if isinstance(given, str):
        return [given]
    prompts = [given] if given and _is_token(given[0]) else given
    if len(prompts) > limits.max_prompts:
        raise InvalidRequestError(
            f"prompt=[…]: {len(prompts)} prompts, and this server takes at most {limits.max_prompts} at once"
        )
    for prompt in prompts:
        if isinstance(prompt, list):
            check_length(len(prompt))
    if not prompts or not all(isinstance(each, str) or _is_tokens(each) for each in prompts):
        raise InvalidRequestError(
            "prompt=…: must be a text, a list of token ids, or a list of either, and not empty"
        )
    return list(prompts)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_token, value))


def conversation(messages: Sequence[ChatMessage]) -> list[Message]:
    """Messages for the chat template: content as text, tool arguments as objects."""
    if not messages:
        raise InvalidRequestError("messages=[]: a conversation has at least one message")
    return [_message(message) for message in messages]


def weight(messages: Sequence[ChatMessage]) -> int:
    """Estimated cost of converting the messages, as a number of characters that takes as long to tokenise."""
    parts = [each for message in messages for each in (message.content, message.tool_calls)]
    return 20 * (len(messages) + sum(len(each) for each in parts if isinstance(each, list)))


def _message(message: ChatMessage) -> Message:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    # Few templates know the role `developer`, and some drop messages of unknown roles.
    found: Message = {"role": "system" if message.role == "developer" else message.role, "content": text}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            found[name] = getattr(message, name)
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return found


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # Invalid JSON, a number of thousands of digits, or too deeply nested.
        return text


def template_options(body: ChatCompletionRequest) -> dict[str, Any]:
    """Keyword arguments for the chat template."""
    options = {**_effort(body), **(body.chat_template_kwargs or {})}
    taken = sorted(_OWN_TEMPLATE_OPTIONS.intersection(options))
    if taken:
        raise InvalidRequestError(f"chat_template_kwargs={taken[0]!r}: this one is set by the server")
    if body.tools and body.tool_choice != "none":
        # `strict` is for the server; models do not know it.
        strict = {"function": {"strict"}}
        options["tools"] = [tool.model_dump(exclude_none=True, exclude=strict) for tool in body.tools]
    return options


def _effort(body: ChatCompletionRequest) -> dict[str, Any]:
    """Effort and verbosity under the names that templates use; templates ignore names they do not use."""
    given = {"reasoning_effort": body.reasoning_effort, "verbosity": body.verbosity}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if body.reasoning_effort == "none":
        options["enable_thinking"] = False
    return options
