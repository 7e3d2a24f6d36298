"""Flags of `ssd serve` and of vLLM as words: spelling, which are given, and commands as shell text.

Knows no meanings, except the address that vLLM will listen on.
"""

import shlex
from collections.abc import Sequence
from typing import Any

from ssd.cli.engine_options import ServerOptions, server_config
from ssd.processes.sockets import open_port


def value_of(flag: str, flags: Sequence[str]) -> str:
    """Value of `--flag value` or `--flag=value`, with dashes or underscores; empty if not given."""
    for place, each in enumerate(flags):
        name, _, value = each.partition("=")
        if name.replace("_", "-") == flag:
            return value or " ".join(flags[place + 1 : place + 2])
    return ""


def refuse_taken_port(server: ServerOptions, flags: Sequence[str]) -> None:
    """ValueError if the server could not listen. It listens later, and says the same then."""
    address = address_of(server, flags)
    if address is not None:
        open_port(*address).close()


def address_of(server: ServerOptions, flags: Sequence[str]) -> tuple[str, int] | None:
    """Where the server will listen; None: not on a port.

    vLLM listens once its model and KV cache are there.
    """
    if is_said("--uds", flags) or is_said("--headless", flags):
        return None
    settings, host, port = server_config(server), value_of("--host", flags), value_of("--port", flags)
    return host or settings.host, int(port) if port.isdigit() else settings.port


def words_of(flag: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, str(value)]


def is_said(flag: str, flags: Sequence[str]) -> bool:
    """Whether a flag is given as `--flag`, `--flag=…` or `--flag.key`, with dashes or underscores."""
    return any(each.replace("_", "-").partition("=")[0].partition(".")[0] == flag for each in flags)


def spelled_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def assigned(variables: Any) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]


def joined_words(words: Sequence[str]) -> str:
    """A command as shell text, one option per line."""
    lines: list[str] = []
    for word in words:
        is_name = word.startswith("-")
        quoted = word if "=" in word and not is_name and not lines else shlex.quote(word)
        if is_name or not lines:
            lines.append(quoted)
        else:
            lines[-1] += f" {quoted}"
    return " \\\n    ".join(lines)
