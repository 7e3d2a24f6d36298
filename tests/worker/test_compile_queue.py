"""Grammars of strangers are tried where they can do no harm."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ssd.engine.grammar import tokenizer_text
from ssd.engine.grammar_cache import GrammarCache
from ssd.engine.grammar_source import source_of
from ssd.runtime.cores import can_pin, cores_beside, usable_cores
from ssd.sampling import Grammar
from ssd.worker.compile_queue import CompileQueue, CompileSandbox
from ssd.worker.messages import Prepare
from ssd.worker.sandbox_program import Ask, SandboxSettings
from tests.server.process import children_of
from tests.tiny import tiny_tokenizer

SMALL = Grammar("regex", "[ab]{3}")
COSTLY = Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}')
"""Ten seconds and 300 MB."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[CompileSandbox]:
    found = CompileSandbox(SandboxSettings(tokenizer_text(tiny_tokenizer()), (1,), 512), num_channels=2)
    found.wait_until_ready()
    yield found
    found.end()


def ask(grammar: Grammar, **limits: Any) -> Ask:
    given = {"processor_seconds": 20.0, "seconds": 120.0, "num_bytes": 256 << 20, "niceness": 0, **limits}
    return Ask(source_of(grammar), **given)


def test_what_can_be_used_is_said_to_be_so(sandbox: CompileSandbox) -> None:
    assert sandbox.ask(0, ask(SMALL)).refusal == ""
    assert "no text fits it" in sandbox.ask(1, ask(Grammar("lark", "start: start"))).refusal


@pytest.mark.skipif(not can_pin(), reason="needs a way to pin")
def test_grammars_are_tried_beside_the_engines_cores() -> None:
    """On the engine's own core each of its parallel regions waited for a compiler to give way."""
    *taken, last = usable_cores()
    assert cores_beside(taken) == (last,)
    assert set(cores_beside(usable_cores())) == set(usable_cores())
    settings = SandboxSettings(tokenizer_text(tiny_tokenizer()), (1,), 512, cores_beside(taken))
    found = CompileSandbox(settings, num_channels=1)
    try:
        found.wait_until_ready()
        assert os.sched_getaffinity(found.pid) == {last}
    finally:
        found.end()


def test_a_compile_queue_has_an_end() -> None:
    """A hundred bombs at once put everybody's grammar behind them."""
    grammars: Any = SimpleNamespace(
        settings=(tiny_tokenizer(), (1,), 512), is_prepared=lambda _grammar: False
    )
    queue = CompileQueue(grammars)
    try:
        asked = [Prepare(ticket, SMALL, time.monotonic()) for ticket in range(20)]
        answers = [queue._enqueue(each, queue._quick) for each in asked]
        assert answers[:16] == [None] * 16
        refused = [each for each in answers[16:] if each is not None and not each.is_final]
        assert [each.ticket for each in refused] == [16, 17, 18, 19]
        assert "try again" in refused[0].refusal
    finally:
        queue._sandbox.end()


def test_processor_time_has_an_end(sandbox: CompileSandbox) -> None:
    """A bomb is ended by the time it may take."""
    found = sandbox.ask(0, ask(COSTLY, processor_seconds=0.1))
    assert found.is_late
    assert found.is_certain
    assert "processor time" in found.refusal
    assert sandbox.ask(0, ask(SMALL)).refusal == ""


def test_a_busy_machine_is_no_verdict_on_a_grammar(sandbox: CompileSandbox) -> None:
    found = sandbox.ask(0, ask(COSTLY, seconds=0.05))
    assert found.is_late
    assert not found.is_certain


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited by time alone elsewhere")
def test_memory_has_an_end(sandbox: CompileSandbox) -> None:
    """And by the memory it may take."""
    found = sandbox.ask(1, ask(COSTLY, num_bytes=16 << 20))
    assert "16 MB of memory" in found.refusal
    assert sandbox.ask(1, ask(SMALL)).refusal == ""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are read from /proc")
def test_a_process_that_is_gone_is_started_again(sandbox: CompileSandbox) -> None:
    before = sandbox.pid
    for each in (*children_of(before), before):
        os.kill(each, signal.SIGKILL)
    assert [sandbox.ask(line, ask(SMALL)).refusal for line in (0, 1)] == ["", ""]
    assert sandbox.pid != before


def test_what_is_kept_is_bounded_by_size_but_not_dropped_at_once() -> None:
    """Many costly grammars that can be used do not add up."""
    now = 0.0
    cache: GrammarCache[int, str] = GrammarCache(clock=lambda: now)
    for number in range(10):
        cache.put(number, "x", 32 << 20)
    assert len(cache) == 10  # Somebody has just asked for each.
    now = 60.0
    cache.put(10, "x", 32 << 20)
    assert [number for number in range(11) if cache.get(number)] == [7, 8, 9, 10]
    for number in range(100):
        cache.put(number, "x", 0)
        now += 10
    assert len(cache) <= 64
