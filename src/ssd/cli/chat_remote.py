"""Chat backend for servers with OpenAI's API: vLLM, SGLang, `ssd serve` and others.

Uses OpenAI's client, which also returns fields that OpenAI does not have, such as origins and speculation
statistics of `ssd serve`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from ssd.cli.chat_talk import AnswerStats, Message, Piece
from ssd.version import how_to_install

if TYPE_CHECKING:
    from openai import OpenAI

    from ssd.config import Mode
    from ssd.sampling import SamplingParams

Server = Literal["vLLM", "SGLang", "the server"]
_HOW_TO_SWITCH = {
    "vLLM": "start vLLM with another --speculative-config",
    "SGLang": "start SGLang with another --speculative-algorithm",
    "the server": "start the server in another mode",
}


class RemoteBackend:
    def __init__(
        self,
        server: Server,
        url: str,
        *,
        model: str | None,
        api_key: str | None,
        params: SamplingParams,
        wants_origins: bool = False,
    ) -> None:
        """`wants_origins`: ask for the origin of each token, which only `ssd serve` supports."""
        if wants_origins and server != "the server":
            raise ValueError(f"--color-origins has no meaning with {server}: only ssd serve reports origins")
        self._server, self._url = server, url.rstrip("/").removesuffix("/v1")
        self._client = _client(f"{self._url}/v1", api_key)
        self._model = model or self._first_model()
        self._request = _request(params, wants_origins=wants_origins)
        self.usage = AnswerStats()

    @property
    def title(self) -> str:
        return f"{self._model} on {self._server} at {self._url}"

    def answer(self, messages: list[Message]) -> Iterator[Piece]:
        self.usage = AnswerStats()
        with self._errors():
            create: Any = self._client.chat.completions.create
            stream = create(model=self._model, messages=messages, stream=True, **self._request)
            with stream:
                for chunk in stream:
                    if chunk.usage is not None:
                        self.usage = _usage(chunk.usage)
                    for choice in chunk.choices:
                        yield from _pieces(choice)

    def switch_mode(self, mode: Mode, draft: str | None) -> None:
        raise ValueError(f"{self._server} decides how it decodes: {_HOW_TO_SWITCH[self._server]}")

    def close(self) -> None:
        self._client.close()

    def _first_model(self) -> str:
        with self._errors():
            models = self._client.models.list().data
        if not models:
            raise ValueError(f"{self._url} names no models: say which with --model")
        return models[0].id

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import openai

        try:
            yield
        except openai.APIConnectionError as error:
            raise ValueError(f"no answer from {self._url}: is {self._server} running there?") from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ValueError(
                f"{self._url} wants another API key: give it with --api-key or SSD_API_KEY"
            ) from error
        except openai.APIError as error:
            raise ValueError(f"{self._url} refused: {error.message}") from error


def _client(url: str, api_key: str | None) -> OpenAI:
    try:
        from openai import OpenAI
    except ImportError as error:
        raise ValueError(f"a chat with a server needs OpenAI's client: {how_to_install('client')}") from error
    # The client insists on a key; servers without one ignore it.
    return OpenAI(base_url=url, api_key=api_key or "none")


def _request(params: SamplingParams, *, wants_origins: bool) -> dict[str, Any]:
    """Only fields that differ from the defaults: servers may refuse unknown fields."""
    standard: dict[str, Any] = {"temperature": params.temperature, "stream_options": {"include_usage": True}}
    optional = {
        "max_tokens": params.max_tokens,
        "top_p": params.top_p if params.top_p != 1 else None,
        "seed": params.seed,
        "stop": list(params.stop) or None,
    }
    beyond = {
        "top_k": params.top_k or None,
        "min_p": params.min_p or None,
        "repetition_penalty": params.repetition_penalty if params.repetition_penalty != 1 else None,
        "ignore_eos": params.ignore_eos or None,
        "return_origins": wants_origins or None,
    }
    standard |= {name: value for name, value in optional.items() if value is not None}
    extra = {name: value for name, value in beyond.items() if value is not None}
    return {**standard, "extra_body": extra} if extra else standard


def _pieces(choice: Any) -> Iterator[Piece]:
    origins = getattr(choice, "origins", None) or [None]
    delta = choice.delta
    thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    if thought:
        yield Piece(thought, num_tokens=len(origins), is_thought=True)
    if delta.content:
        yield Piece(delta.content, origins[-1], num_tokens=len(origins))


def _usage(usage: Any) -> AnswerStats:
    speculation = getattr(usage, "speculation", None) or {}
    return AnswerStats(
        usage.completion_tokens, speculation.get("accepted_per_round"), speculation.get("hit_rate")
    )
