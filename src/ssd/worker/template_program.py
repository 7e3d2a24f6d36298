"""A process that renders chat templates: `python -m ssd.worker.template_program FD FD`, started by Templates.

A chat template is a program from the model folder that processes messages from strangers: it may loop for
ever or use up memory. Jinja's sandbox in transformers prevents access to the machine, but not that. So each
channel is served by a fork with limits on processor time and memory. A fork that exceeds them is killed, the
conversation is refused, and a new fork serves the channel. A fork ends when its channel is closed.

Knows templates and the limits. Does not know tokenizers.
"""

import contextlib
import os
import signal
import socket
import sys
from typing import Any

import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from ssd.worker.forking import limit_memory

PROCESSOR_SECONDS = 2.0
"""For one conversation; enough for some ten thousand messages."""
_MEMORY_BYTES = 512 << 20
"""Limit for what a fork allocates after its start."""


NO_NUMBER = -1


class Conversation(msgspec.Struct, frozen=True):
    number: int
    """Identifies the answer."""
    template: str
    messages: list[dict[str, Any]]
    options: dict[str, Any]
    """Further arguments of render_jinja_template, among them the template's variables."""


class Rendered(msgspec.Struct, frozen=True):
    number: int = NO_NUMBER
    """Of the conversation; NO_NUMBER: the one being rendered when the fork was killed."""
    text: str = ""
    refusal: str | None = None
    """Why rendering failed; None: it did not."""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.readline()
    channels = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    served = {_forked(channel): channel for channel in channels}
    for channel in channels:
        channel.sendall(b"\n")  # Ready.
    while served:
        pid, status = os.wait()
        channel, ended_by = served.pop(pid), -os.waitstatus_to_exitcode(status)
        if ended_by and _was_sent(channel, _verdict_on_end(ended_by)):
            served[_forked(channel)] = channel
    return 0


def _was_sent(channel: socket.socket, rendered: Rendered) -> bool:
    with contextlib.suppress(OSError):  # The server is gone.
        channel.sendall(msgspec.json.encode(rendered) + b"\n")
        return True
    return False


def _forked(channel: socket.socket) -> int:
    """Starts the process that serves a channel; it exits with 0 when the channel is closed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _serve(channel)
            code = 0
        finally:
            os._exit(code)
    return pid


def _serve(channel: socket.socket) -> None:
    limit_memory(_MEMORY_BYTES)
    # The default action of SIGPROF ends the process even inside a library.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for asked in channel.makefile("rb"):
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        said = msgspec.json.encode(_rendered(asked)) + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.sendall(said)


def _rendered(asked: bytes) -> Rendered:
    ask = msgspec.json.decode(asked, type=Conversation)
    try:
        # As the tokenizer does: many templates fail on a field that is None.
        messages = [{k: v for k, v in each.items() if v is not None} for each in ask.messages]
        texts, _ = render_jinja_template([messages], chat_template=ask.template, **ask.options)
        return Rendered(ask.number, texts[0])
    except MemoryError:
        return Rendered(ask.number, refusal=_TOO_MUCH_MEMORY)
    except Exception as error:  # A template may raise anything on unusual messages or options.
        return Rendered(ask.number, refusal=str(error)[:1000] or type(error).__name__)


_TOO_MUCH_MEMORY = f"it takes more than {_MEMORY_BYTES >> 20} MB of memory for these messages"


def _verdict_on_end(ended_by: int) -> Rendered:
    if ended_by == signal.SIGPROF:
        return Rendered(refusal=f"it takes more than {PROCESSOR_SECONDS:g} s for these messages")
    return Rendered(refusal="it failed on these messages")


if __name__ == "__main__":
    sys.exit(main())
