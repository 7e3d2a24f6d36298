"""The grammar sandbox process: `python -m ssd.worker.sandbox_program FD FD`, started by CompileSandbox.

Compiles each grammar in a fork of its own, with limits on processor time and memory, so that nothing remains
of it. There is one channel for each file descriptor: a slow grammar blocks only its own channel. A process
that serves a channel ends when the channel is closed, also by the engine's death.

Knows llguidance and the limits. Imports little, because it holds a second copy of the vocabulary.
"""

import os
import resource
import select
import signal
import socket
import sys
import warnings

import msgspec
from llguidance import LLTokenizer

from ssd.engine.grammar_compile import compile_source, trie_of
from ssd.worker.forking import limit_memory

_STACK_BYTES = 4 << 20
"""Half the stack of an engine thread: a grammar that compiles here cannot overflow the stack there."""


class SandboxSettings(msgspec.Struct, frozen=True):
    tokenizer: str
    """As JSON."""
    end_ids: tuple[int, ...]
    vocab_size: int
    cores: tuple[int, ...] = ()
    """Cores to run on, away from the engine's; empty: no change."""


class Ask(msgspec.Struct, frozen=True):
    source: str
    processor_seconds: float
    seconds: float
    """Wall-clock limit; on a busy machine it is reached before the processor limit."""
    num_bytes: int
    niceness: int


class Verdict(msgspec.Struct, frozen=True):
    refusal: str = ""
    """Why the grammar cannot be used; empty: it can, unless `is_late`."""
    is_late: bool = False
    """A time limit was exceeded."""
    is_certain: bool = True
    """Another attempt would have the same result."""
    num_bytes: int = 0
    """Memory that compiling took."""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Python warns of forks beside threads; the library's threads are idle here.
    warnings.simplefilter("ignore", DeprecationWarning)
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=SandboxSettings)
    if settings.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings.cores)
    trie = trie_of(settings.tokenizer, settings.end_ids, settings.vocab_size)
    channels = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    for channel in channels:
        if os.fork() == 0:
            for other in channels:
                if other is not channel:
                    other.close()
            _serve(channel, trie, settings.vocab_size)
            return 0
    for channel in channels:
        channel.close()
    for _ in channels:
        os.wait()
    return 0


def _serve(channel: socket.socket, trie: LLTokenizer, vocab_size: int) -> None:
    channel.sendall(b"\n")  # It is ready.
    for asked in channel.makefile("rb"):
        verdict = _tried(msgspec.json.decode(asked, type=Ask), channel, trie, vocab_size)
        channel.sendall(msgspec.json.encode(verdict) + b"\n")


def _tried(ask: Ask, channel: socket.socket, trie: LLTokenizer, vocab_size: int) -> Verdict:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try_and_exit(ask, trie, vocab_size, write_end)
    os.close(write_end)
    # The engine sends one request at a time, so a readable channel has been closed.
    done, _, _ = select.select([read_end, channel.fileno()], [], [], ask.seconds)
    said = os.read(read_end, 1 << 16) if read_end in done else b""
    os.close(read_end)
    os.kill(pid, signal.SIGKILL)
    ended_by = -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said:
        return msgspec.json.decode(said, type=Verdict)
    if not done:
        busy = "it was not compiled in time: the machine is busy, try again"
        return Verdict(busy, is_late=True, is_certain=False)
    return _verdict_on_end(ended_by, ask)


def _verdict_on_end(ended_by: int, ask: Ask) -> Verdict:
    """For a grammar whose fork ended without a verdict."""
    if ended_by == signal.SIGPROF:
        reason = f"compiling it takes more than {ask.processor_seconds:g} s of processor time: simplify it"
        return Verdict(reason, is_late=True)
    if ended_by == signal.SIGABRT:
        return Verdict(f"compiling it takes more than {ask.num_bytes >> 20} MB of memory: simplify it")
    return Verdict("its compiler failed on it")


def _try_and_exit(ask: Ask, trie: LLTokenizer, vocab_size: int, write_end: int) -> None:
    try:
        _limit(ask)
        before = _resident_bytes()
        _, refusal = compile_source(trie, ask.source, vocab_size)
        verdict = Verdict(refusal, num_bytes=_resident_bytes() - before)
        os.write(write_end, msgspec.json.encode(verdict))
    finally:
        os._exit(0)


def _limit(ask: Ask) -> None:
    os.nice(ask.niceness)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    limit_memory(ask.num_bytes)
    # The default action of SIGPROF ends the process even inside the library.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, ask.processor_seconds)


def _resident_bytes() -> int:
    """Peak resident memory so far."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


if __name__ == "__main__":
    sys.exit(main())
