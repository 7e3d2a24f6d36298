"""Who sent a request: its id, and the tenant whose prompts it may share in the prefix cache."""

from dataclasses import dataclass

from fastapi import Request


@dataclass(frozen=True, slots=True)
class Caller:
    request_id: str
    tenant: str = ""
    """A digest of the API key; empty if the server has no keys."""

    @classmethod
    def of(cls, request: Request) -> "Caller":
        return cls(request.state.request_id, getattr(request.state, "tenant", ""))

    def cache_key(self, salt: str | None) -> str:
        """Key of the prefix cache. Tenants never share entries: `cached_tokens` and the time to first token
        would reveal other tenants' prompts."""
        return f"{self.tenant}\n{salt or ''}"
