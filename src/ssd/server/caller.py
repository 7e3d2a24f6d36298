"""Who asks: the request's id, and whose prompts may be found in the prefix cache. Data only."""

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class Caller:
    request_id: str
    tenant: str = ""
    """The same for all who hold the same API key, and no one else; empty where no key is asked for."""

    @classmethod
    def of(cls, request: Request) -> "Caller":
        return cls(request.state.request_id, getattr(request.state, "tenant", ""))

    def cache_key(self, salt: str | None) -> str:
        """What `cached_tokens` and the time to a first token tell is about these callers' prompts only."""
        return f"{self.tenant}\n{salt or ''}"
