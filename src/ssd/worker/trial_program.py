"""A process that tries grammars for an engine: `python -m ssd.worker.trial_program FD FD`, started by Trials.

Each grammar is compiled in a fork of its own, with limits on processor time and memory: whatever comes of it
ends with the fork. There is one link for each file descriptor, so that a slow grammar holds up its own link
only. A link's end, like that of the engine, ends what serves it.

Knows llguidance and the limits. Imports little: it holds the vocabulary once more as it is.
"""

import os
import resource
import select
import signal
import socket
import sys
import warnings
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from ssd.engine.grammar_trial import attempt, trie_of

_STACK_BYTES = 4 << 20
"""Half of what a thread of the engine has, so that what passes here does not overflow there."""
_MEMORY_NOW = Path("/proc/self/statm")
"""Where there is none (macOS), memory cannot be limited, and the time alone bounds it."""


class TrialSettings(msgspec.Struct, frozen=True):
    tokenizer: str
    """Its JSON."""
    end_ids: tuple[int, ...]
    vocab_size: int
    cores: tuple[int, ...] = ()
    """Where it runs, so that it is not in the way of the engine; empty: where it was started."""


class Ask(msgspec.Struct, frozen=True):
    source: str
    processor_seconds: float
    seconds: float
    """By the clock: on a machine that is busy, a little work takes long."""
    num_bytes: int
    niceness: int


class Verdict(msgspec.Struct, frozen=True):
    refusal: str = ""
    """Why the grammar cannot be used; empty: it can, unless it was late."""
    is_late: bool = False
    """The time was used up."""
    is_certain: bool = True
    """Another attempt would end like this one."""
    num_bytes: int = 0
    """What it took."""


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # About forks beside threads: those of the library rest.
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=TrialSettings)
    if settings.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, settings.cores)
    trie = trie_of(settings.tokenizer, settings.end_ids, settings.vocab_size)
    links = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    for link in links:
        if os.fork() == 0:
            for other in links:
                if other is not link:
                    other.close()
            _serve(link, trie, settings.vocab_size)
            return 0
    for link in links:
        link.close()
    for _ in links:
        os.wait()
    return 0


def _serve(link: socket.socket, trie: LLTokenizer, vocab_size: int) -> None:
    link.sendall(b"\n")  # It is ready.
    for asked in link.makefile("rb"):
        verdict = _tried(msgspec.json.decode(asked, type=Ask), link, trie, vocab_size)
        link.sendall(msgspec.json.encode(verdict) + b"\n")


def _tried(ask: Ask, link: socket.socket, trie: LLTokenizer, vocab_size: int) -> Verdict:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try_and_exit(ask, trie, vocab_size, write_end)
    os.close(write_end)
    # The engine asks one thing at a time: what comes over the link meanwhile can only be its end.
    done, _, _ = select.select([read_end, link.fileno()], [], [], ask.seconds)
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
    """On a grammar whose fork ended without a word, by a signal or otherwise."""
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
        _, refusal = attempt(trie, ask.source, vocab_size)
        verdict = Verdict(refusal, num_bytes=_resident_bytes() - before)
        os.write(write_end, msgspec.json.encode(verdict))
    finally:
        os._exit(0)


def _limit(ask: Ask) -> None:
    os.nice(ask.niceness)
    for kind, most in ((resource.RLIMIT_STACK, _STACK_BYTES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    if _MEMORY_NOW.exists():
        mapped = int(_MEMORY_NOW.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ask.num_bytes, resource.RLIM_INFINITY))
    # The signal ends the process: nothing in it is asked, whatever it is at.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, ask.processor_seconds)


def _resident_bytes() -> int:
    """The most so far."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


if __name__ == "__main__":
    sys.exit(main())
