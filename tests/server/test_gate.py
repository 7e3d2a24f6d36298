"""Who may come in, how much one request may ask for, and what becomes of those who leave before that."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from ssd.config.server import ServerConfig
from ssd.engine.request import Request
from ssd.sampling import SamplingParams
from ssd.sampling.constraint import GrammarBusyError, GrammarError
from ssd.server.answering import Answering
from ssd.server.errors import ApiError
from ssd.server.gate import Gate
from ssd.server.metrics import Metrics
from ssd.server.protocol import _LEAST_READ, _MOST_UNREAD, BoundedProtocol
from ssd.server.schemas import CompletionRequest
from ssd.server.serving import Caller, Serving


def gate(max_num_seqs: int = 2, max_queue: int = 2) -> Gate:
    client: Any = SimpleNamespace(state="ready", config=SimpleNamespace(max_num_seqs=max_num_seqs))
    return Gate(client, max_queue=max_queue)


def serving(client: Any = None, **limits: Any) -> Serving:
    return Serving(client, ServerConfig(**limits), Metrics(), gate(64, 256))


def request(num_prompt: int, **params: Any) -> Request:
    return Request("r", None, (1,) * num_prompt, SamplingParams(**params), seed=0, end_ids=())


def test_those_who_are_being_prepared_take_room() -> None:
    """Whoever waits for a grammar was in no queue, and there was no end to them."""
    doors = gate(max_queue=1)
    with doors.prepare(), doors.prepare(), doors.enter([request(1)]):
        with pytest.raises(ApiError) as found, doors.prepare():
            pass
        assert (found.value.status, found.value.code) == (429, "queue_full")
    with doors.prepare():
        pass


async def test_whoever_ends_the_server_waits_for_those_inside() -> None:
    doors = gate()
    with doors.enter([request(1)]):
        ending = asyncio.create_task(doors.drain(60.0))
        await asyncio.sleep(0.05)
        assert (doors.is_draining, ending.done()) == (True, False)
    await asyncio.wait_for(ending, 30.0)


async def test_whoever_ends_the_server_waits_for_answers_that_are_still_read() -> None:
    """The engine has finished all of them; one is read to its end, another is not: that one has its time."""
    doors = gate()
    first, second = (replace(request(1), request_id=name) for name in "ab")
    with doors.enter([first]):
        with doors.enter([second]):
            doors.leave(first)
            doors.leave(second)
        ending = asyncio.create_task(doors.drain(60.0))
        await asyncio.sleep(0.05)
        assert (doors.is_empty, ending.done()) == (False, False)
    await asyncio.wait_for(ending, 30.0)


def test_many_texts_of_a_few_keep_nobody_else_out() -> None:
    """Ten who asked for sixteen texts each, and read none, and everybody else was refused."""
    doors = gate(max_num_seqs=8, max_queue=24)
    with doors.enter([request(1, n=16)]), doors.enter([replace(request(1, n=2), request_id="other")]):
        # One more of many is told to come later; one of one is let in, until firsts fill the room too.
        with pytest.raises(ApiError), doors.enter([replace(request(1, n=2), request_id="third")]):
            pass
        single = [replace(request(1), request_id=f"single {number}") for number in range(20)]
        with ExitStack() as inside:
            for each in single[:14]:
                inside.enter_context(doors.enter([each]))
            with pytest.raises(ApiError) as found:
                inside.enter_context(doors.enter([single[14]]))
            assert found.value.status == 429


def test_one_request_leaves_room_for_others() -> None:
    """64 prompts of 16 texts each were taken whole, and everybody else refused until they had ended."""
    served = serving()
    served.check_num_texts(64, 1)
    served.check_num_texts(10, 16)
    with pytest.raises(ApiError, match="64 prompts with 16 texts each: this server takes 160") as found:
        served.check_num_texts(64, 16)
    assert found.value.status == 400
    with gate(max_num_seqs=1, max_queue=0).enter([request(1, n=2)]):
        pass  # The smallest server takes several texts of one request too, when it has nothing else to do.
    # What each limit allows by itself is allowed, on a small server too.
    small = serving(max_prompts=500)
    small.check_num_texts(500, 1)


def test_a_prompt_leaves_room_for_a_token() -> None:
    """Or it is refused before its answer begins, with the code that clients look for."""
    served = serving(SimpleNamespace(max_model_len=9))
    served.check_length(8)
    with pytest.raises(ApiError, match="the prompt has 9 tokens") as found:
        served.check_length(9)
    assert (found.value.status, found.value.code) == (400, "context_length_exceeded")


def test_scores_of_prompts_have_a_bound() -> None:
    """Those of one prompt go with each of its texts: hundreds of megabytes for a small body."""
    served = serving()
    served.check_scores([request(8000, prompt_logprobs=20)])
    served.check_scores([request(8000, n=16)])
    served.check_scores([request(2000, prompt_logprobs=1)] * 64)
    with pytest.raises(ApiError, match="at most 1000000 at once") as found:
        served.check_scores([request(8000, prompt_logprobs=20, n=16)])
    assert (found.value.status, found.value.param) == (400, "prompt_logprobs")


@pytest.mark.parametrize(("kind", "status"), [(GrammarError, 400), (GrammarBusyError, 503)])
def test_a_busy_desk_is_no_fault_of_the_grammar(kind: type[Exception], status: int) -> None:
    """Clients try again after a 503, and not after a 400."""

    async def fail(*_: Any, **__: Any) -> Request:
        raise kind("why")

    body = CompletionRequest(prompt="x", structured_outputs={"regex": "a"})  # type: ignore[arg-type]
    served = serving(SimpleNamespace(request=fail))
    with pytest.raises(ApiError, match="why") as found:
        asyncio.run(served.request(body, "x", SamplingParams(), Caller("r")))
    assert found.value.status == status
    assert (found.value.code == "grammars_busy") is (status == 503)
    assert ("Retry-After" in found.value.headers) is (status == 503)


def test_a_client_that_leaves_is_not_prepared_for() -> None:
    """And its room is free again."""
    served, log = serving(), list[str]()

    async def make() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append("given up")
            raise

    async def receive() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope: dict[str, Any] = {"type": "http", "state": {"fields": {}}}
    asyncio.run(Answering(served, make)(scope, receive, send))
    assert log == ["given up"]
    assert scope["state"]["is_gone"]
    assert not served.gate._num_preparing


class Line:
    """Of a client that reads nothing."""

    def __init__(self, num_unread: int) -> None:
        self.num_unread = num_unread

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def is_closing(self) -> bool:
        return not self.num_unread

    def abort(self) -> None:
        self.num_unread = 0


def test_answers_that_nobody_reads_have_a_bound_together() -> None:
    """Each by itself was read just fast enough; the largest goes first."""
    third = _MOST_UNREAD // 3
    lines = [Line(third + 9), Line(1000), Line(third + 1), Line(third + 5)]
    connections: set[Any] = set()
    for line in lines:
        protocol_of(line, connections)
    next(iter(connections))._bound_unread()
    assert [line.num_unread for line in lines] == [0, 1000, third + 1, third + 5]


def protocol_of(line: Line, connections: set[Any], loop: Any = None, **limits: Any) -> Any:
    found: Any = BoundedProtocol.__new__(BoundedProtocol)
    found.transport, found.connections, found.loop = line, connections, loop
    found._limits, found._reading, found._num_unread = ServerConfig(**limits), None, 0
    found.cycle, found._waiting_since, found._unread_since = None, 0.0, 0.0
    connections.add(found)
    return found


@pytest.mark.parametrize(("num_computed", "is_left"), [(_LEAST_READ, False), (_LEAST_READ - 1, True)])
def test_who_reads_less_than_16_kib_while_more_waits_is_left(num_computed: int, is_left: bool) -> None:
    assert _LEAST_READ == 16 << 10
    due = list[Any]()
    loop = SimpleNamespace(call_later=lambda *timer: due.append(timer))
    line = Line(1 << 20)
    protocol = protocol_of(line, set(), loop, write_seconds=5.0)
    protocol._wait_for_reader()
    [(seconds, check)] = due
    assert seconds == 5.0
    line.num_unread -= num_computed
    check()
    assert line.is_closing() is is_left
    assert len(due) == (1 if is_left else 2)


def test_a_new_connection_takes_the_place_of_whoever_has_not_read_for_longest() -> None:
    """An answer that nobody reads is no work: it is the client's turn."""
    connections: set[Any] = set()
    at_work, unread, idle, new = (protocol_of(Line(1), connections, max_connections=3) for _ in range(4))
    answering = SimpleNamespace(response_complete=False, more_body=False)
    at_work.cycle = unread.cycle = answering
    unread._reading, unread._unread_since, idle._waiting_since = object(), 5.0, 9.0
    new._make_room()
    assert [each.transport.is_closing() for each in (at_work, unread, idle, new)] == [
        False,
        True,
        False,
        False,
    ]
