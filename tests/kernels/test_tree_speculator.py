"""What V2's speculator is given under asynchronous scheduling, with stand-ins for the names that vLLM has.

`tests/exact/vllm` runs the same in vLLM itself, for tokens alone.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from ssd.draft.client.mirrors import Mirrors
from ssd.draft.protocol.messages import Nodes, TreePart
from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.settings import Settings
from tests.vllm.records import scheduled

STEPS, ROWS, TEXT = 3, 5, 40
NAMES = {
    "vllm": (),
    "vllm.distributed.parallel_state": ("get_tp_group",),
    "vllm.utils.torch_utils": ("async_tensor_h2d",),
    "vllm.v1.outputs": ("AsyncModelRunnerOutput",),
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler": ("RejectionSampler",),
    "vllm.v1.worker.gpu.spec_decode.speculator": ("BaseSpeculator",),
}
MODULE = "ssd.integrations.vllm.runner_v2"


@pytest.fixture
def runner_v2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, contents in NAMES.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        for each in contents:
            setattr(module, each, type(each, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    found: Any = import_module(MODULE)
    found.get_tp_group = lambda: SimpleNamespace(world_size=1)
    yield found
    # No other test may meet a module that was imported with stand-ins.
    del sys.modules[MODULE]


class FakeSessions:
    """Requests whose trees are chains of tokens: each says its `seq` times 100, and counts on."""

    def __init__(self, lengths: dict[str, int], *, shift: int = 0) -> None:
        self.mirrors = Mirrors()
        self._seqs = {request_id: seq for seq, request_id in enumerate(lengths)}
        for request_id, length in lengths.items():
            seq = self._seqs[request_id]
            self.mirrors.open(seq, 1, length)
            ids = range(1, 13)
            tokens = [self.token(request_id, shift + place) for place in range(12)]
            part = TreePart(seq, 1, 0, 0, 0, length, ids, range(12), tokens, [-1.0] * 12)
            self.mirrors.take(Nodes.of([part]))
        self.speculator = SimpleNamespace(client=SimpleNamespace(pool=self, mirrors=self.mirrors))
        self.lock = Lock()

    def token(self, request_id: str, place: int) -> int:
        return 100 * self._seqs[request_id] + place

    def seqs(self, request_ids: list[str]) -> list[int]:
        assert self.lock.locked()
        return [self._seqs.get(each, -1) for each in request_ids]


class World:
    """A runner of five rows, in which the texts of requests lie in an order of their own."""

    def __init__(self, runner_v2: Any, sessions: FakeSessions | None) -> None:
        self.rows = {"a": 3, "b": 0, "c": 4, "d": 1}
        self.texts = torch.full((ROWS, TEXT), -5, dtype=torch.int32)
        self.lengths = torch.zeros(ROWS, dtype=torch.int32)
        states = SimpleNamespace(
            total_len=SimpleNamespace(gpu=self.lengths), all_token_ids=SimpleNamespace(gpu=self.texts)
        )
        self.runner = SimpleNamespace(
            req_states=states,
            num_speculative_steps=STEPS,
            max_num_reqs=ROWS,
            device=torch.device("cpu"),
            speculator="stock",
        )
        self.sessions = sessions
        settings = Settings(draft="ipc:///draft", coupled=False)
        self.patch = runner_v2.AsyncV2RunnerPatch(
            self.runner, BatchRows("salt"), settings, self._with_sessions
        )
        self.patch.device_ready()

    def _with_sessions(self, work: Callable[[Any], Any]) -> Any:
        return None if self.sessions is None else work(self.sessions)

    def write(self, request_id: str, start: int, num_tokens: int) -> None:
        """Tokens that were sampled since the tree's root, which is at `start`."""
        assert self.sessions
        row = self.rows[request_id]
        self.lengths[row] = start + num_tokens
        for place in range(num_tokens):
            self.texts[row, start + place] = self.sessions.token(request_id, place)

    def propose(
        self, *request_ids: str, num_sampled: tuple[int, ...] = (), dummy_run: bool = False
    ) -> list[list[int]]:
        batch = SimpleNamespace(
            req_ids=list(request_ids),
            num_reqs=len(request_ids),
            idx_mapping=torch.tensor([self.rows[each] for each in request_ids]),
        )
        counts = torch.tensor(num_sampled or (1,) * len(request_ids), dtype=torch.int32)
        drafts = self.runner.speculator.propose(
            batch, None, None, None, None, counts, None, dummy_run=dummy_run
        )
        return [list(each) for each in drafts.tolist()]

    @property
    def num_proposed(self) -> dict[str, int]:
        found: dict[str, int] = self.runner.speculator.proposed.num_proposed()
        return found


def chains(request_ids: str = "abc") -> FakeSessions:
    return FakeSessions({each: 6 + 2 * place for place, each in enumerate(request_ids)})


def test_each_request_continues_its_own_text(runner_v2: Any) -> None:
    """Outcomes of none, one and two steps are late; one request has no draft."""
    world = World(runner_v2, chains())
    world.write("a", 6, 0)
    world.write("b", 8, 3)
    world.write("c", 10, 2 * (STEPS + 1))
    assert world.propose("c", "a", "d", "b") == [[208, 209, 210], [0, 1, 2], [0, 0, 0], [103, 104, 105]]
    assert world.num_proposed == {"c": 3, "a": 3, "d": 0, "b": 3}


def test_a_request_that_has_sampled_nothing_gets_nothing(runner_v2: Any) -> None:
    world = World(runner_v2, chains())
    world.write("a", 6, 1)
    world.write("b", 8, 1)
    assert world.propose("a", "b", num_sampled=(0, 1)) == [[0, 0, 0], [101, 102, 103]]
    assert world.num_proposed == {"a": 0, "b": 3}


def test_a_pause_of_drafting_leaves_nothing_behind(runner_v2: Any) -> None:
    world = World(runner_v2, chains("a"))
    world.write("a", 6, 0)
    assert world.propose("a") == [[0, 1, 2]]
    world.sessions = None
    assert world.propose("a") == [[0, 0, 0]]
    assert world.num_proposed == {}
    world.sessions = FakeSessions({"a": 6}, shift=50)
    assert world.propose("a") == [[50, 51, 52]]


def test_a_dummy_run_asks_nobody(runner_v2: Any) -> None:
    world = World(runner_v2, chains("a"))
    world.write("a", 6, 0)
    assert world.propose("a", dummy_run=True) == [[0, 0, 0]]
    assert world.num_proposed == {}


def test_all_ranks_verify_the_tokens_of_the_first(runner_v2: Any) -> None:
    sent = []

    def broadcast(drafts: Any, src: int) -> Any:
        sent.append(src)
        return drafts + 7

    runner_v2.get_tp_group = lambda: SimpleNamespace(world_size=2, broadcast=broadcast)
    world = World(runner_v2, chains("a"))
    world.write("a", 6, 0)
    assert world.propose("a") == [[7, 8, 9]]
    assert sent == [0]


def test_a_step_settles_with_what_was_proposed_for_it(runner_v2: Any) -> None:
    """A step's output is read after the next proposal was made."""
    world = World(runner_v2, chains("ab"))
    world.write("a", 6, 0)
    world.propose("a")
    world.patch.prepare_step(scheduled(drafted={"a": [-1] * STEPS}))
    world.write("a", 6, 11)
    world.write("b", 8, 0)
    assert world.propose("a", "b") == [[0, 0, 0], [100, 101, 102]]
    output = runner_v2.AsyncModelRunnerOutput()
    output.get_output = lambda: "tokens"
    settled = list[tuple[str, dict[str, int]]]()
    read = world.patch.finish_step(output, lambda decided, counts: settled.append((decided, counts())), None)
    world.patch.prepare_step(scheduled())
    assert read.get_output() == "tokens"
    assert settled == [("tokens", {"a": 3})]
