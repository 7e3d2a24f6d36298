"""Server settings: one frozen object, validated once. Engine settings are EngineConfig's."""

from dataclasses import dataclass
from typing import Literal

from ssd.config.checks import require_choice, require_number
from ssd.processes.logs import LogFormat
from ssd.sampling.params import MAX_LOGPROBS, MAX_N, MAX_STOP_STRINGS

LogLevel = Literal["debug", "info", "warning", "error"]
ToolFormat = Literal["auto", "hermes", "llama3", "none"]
ReasoningFormat = Literal["auto", "think", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    host: str = "127.0.0.1"
    """Who can reach it: this machine only, unless told otherwise."""
    port: int = 8000
    """0 takes a free one and logs it."""
    api_keys: tuple[str, ...] = ()
    """Any of them opens every route; /health, /livez and /ready are always open. Empty: none is asked for."""
    served_model_name: str | None = None
    """What clients call the model; None takes the name of its folder or file, or its name on the hub."""
    max_queue: int = 256
    """Sequences that may wait beyond those that run; more are answered with 429."""
    max_body_bytes: int = 8 << 20
    max_prompts: int = 64
    """Prompts in one completion request."""
    max_n: int = 16
    max_logprobs: int = MAX_LOGPROBS
    max_stop: int = MAX_STOP_STRINGS
    drain_seconds: float = 30.0
    """After SIGTERM running requests have this long to finish."""
    stuck_seconds: float = 8.0
    """Seconds without progress after which /livez and /health say 503."""
    header_seconds: float = 10.0
    """A request's headers have this long from its first byte, or the connection is closed."""
    body_seconds: float = 30.0
    """And its body this long after them, or the answer is 408."""
    write_seconds: float = 30.0
    """A client that reads next to nothing for so long is left."""
    max_connections: int = 512
    """One more, and the one that has kept the server waiting longest is closed."""
    keep_alive_seconds: float = 15.0
    """After so long without an event a stream sends a comment, so that nothing on the way gives it up."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "json"
    otlp_endpoint: str | None = None
    """Where traces go (OTLP over HTTP); None: nowhere. Needs the extra `otel`."""
    tool_format: ToolFormat = "auto"
    """How the model writes tool calls; `auto` reads its chat template."""
    reasoning_format: ReasoningFormat = "auto"
    """How the model marks its reasoning; `auto` reads its chat template."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host is empty: use 127.0.0.1, or 0.0.0.0 to be reached from elsewhere")
        require_number("port", self.port, 0, 65535)
        if any(not key or not key.isascii() for key in self.api_keys):
            raise ValueError("an API key is empty or not ASCII: use letters, digits and dashes")
        require_number("max_queue", self.max_queue, 0, 1 << 20)
        require_number("max_body_bytes", self.max_body_bytes, 1024, 1 << 30)
        require_number("max_prompts", self.max_prompts, 1, 1 << 16)
        require_number("max_n", self.max_n, 1, MAX_N)
        require_number("max_logprobs", self.max_logprobs, 0, MAX_LOGPROBS)
        require_number("max_stop", self.max_stop, 0, MAX_STOP_STRINGS)
        require_number("drain_seconds", self.drain_seconds, 0, 86400)
        require_number("stuck_seconds", self.stuck_seconds, 1, 3600)
        for name in ("header_seconds", "body_seconds", "write_seconds", "keep_alive_seconds"):
            require_number(name, getattr(self, name), 0.1, 3600)
        require_number("max_connections", self.max_connections, 1, 1 << 16)
        kinds = (
            ("log_level", LogLevel),
            ("log_format", LogFormat),
            ("tool_format", ToolFormat),
            ("reasoning_format", ReasoningFormat),
        )
        for name, kind in kinds:
            require_choice(name, getattr(self, name), kind)
