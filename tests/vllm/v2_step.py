"""Steps of our worker on vLLM's V2 runner, with stand-ins for what is vLLM's: scheduler, forward and output.

Everything of ours is real: worker, patch of the runner, speculator, sessions and the draft's client. A rule
(benchmarks/ruled.py) samples the tokens, in numpy, so torch dispatches only what our code asks for. In place
of the kernel that walks the trees, a function computes the same on the host. Needs vLLM.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.outputs import AsyncModelRunnerOutput

from benchmarks.ruled import CONTEXT, outcome, prompt_of
from ssd.draft.client.speculator import Speculator
from ssd.integrations.vllm import runner_v2
from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.drafting import Drafting
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions
from ssd.integrations.vllm.settings import Settings
from ssd.integrations.vllm.worker import SSDWorker
from ssd.kernels import walk
from tests.runtime.counted_device import host_form
from tests.vllm.records import new, params, scheduled

Watch = Callable[[str], AbstractContextManager[None]]
"""Times what it encloses under a name."""


_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    batch: int
    lookahead: int = 4
    is_async: bool = True
    device: torch.device = _CPU


def _unwatched(_name: str) -> AbstractContextManager[None]:
    return nullcontext()


class Forward(SSDWorker.__mro__[1]):  # type: ignore[misc, name-defined]
    """In place of vLLM's worker, between it and ours."""

    target: "StandInTarget"

    def execute_model(self, scheduler_output: Any) -> None:
        with self.target.watch("vLLM"):
            self.target.scheduled = scheduler_output

    def sample_tokens(self, _grammar_output: Any) -> AsyncModelRunnerOutput:
        with self.target.watch("vLLM"):
            return self.target.sample()


class Worker(SSDWorker, Forward):
    """Ours. Its super() is `Forward`."""

    def __init__(self, target: "StandInTarget", sessions: Sessions) -> None:
        self.target = target
        self._settings, self._rows, self._step = Settings(draft="ipc:///draft"), BatchRows("salt"), None
        self._drafting = Drafting(lambda: sessions, sessions.meter)
        arguments = (target.runner, self._rows, self._settings)
        self._patch = (
            runner_v2.AsyncV2RunnerPatch(*arguments, self._draft)
            if target.shape.is_async
            else runner_v2.V2RunnerPatch(*arguments)
        )
        self._patch.device_ready()


class Output(AsyncModelRunnerOutput):  # type: ignore[misc]
    def __init__(self, record: Any, wait: Callable[[], None]) -> None:
        self._record, self._wait = record, wait

    def get_output(self) -> Any:
        self._wait()
        return self._record

    def get_kv_connector_output(self) -> None:
        return None


class StandInTarget:
    def __init__(
        self,
        speculator: Speculator,
        shape: Shape,
        *,
        meter: Meter | None = None,
        watch: Watch = _unwatched,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`wait` returns when a step's forward has ended."""
        self.shape, self.watch, self._wait = shape, watch, wait
        size, device = shape.batch, shape.device
        self._lengths = torch.zeros(size, dtype=torch.int32, device=device)
        self._texts = torch.zeros(size, CONTEXT, dtype=torch.int32, device=device)
        self._drafts = torch.zeros(size, shape.lookahead, dtype=torch.int64, device=device)
        self._batch_rows = torch.arange(size, dtype=torch.int32, device=device)
        self._num_sampled = torch.zeros(size, dtype=torch.int32, device=device)
        self._rows = dict[str, int]()
        self.runner = SimpleNamespace(
            req_states=SimpleNamespace(
                total_len=SimpleNamespace(gpu=self._lengths),
                all_token_ids=SimpleNamespace(gpu=self._texts),
                draft_tokens=self._drafts,
                req_id_to_index=self._rows,
            ),
            num_speculative_steps=shape.lookahead,
            max_num_reqs=size,
            device=device,
            speculator="vLLM's",
            model_config=SimpleNamespace(use_fp64_gumbel=False),
        )
        self._num_begun, self.num_accepted = 0, 0
        self._proposed = dict[str, list[int]]()
        self.scheduled: Any = None
        rows = SimpleNamespace(seed_of=lambda _request_id: 0)
        self.sessions = Sessions(
            speculator,
            rows.seed_of,
            max_model_len=CONTEXT,
            noise="murmur3",
            reopens_preempted=True,
            meter=meter or Meter(exported=False),
        )
        self.worker = Worker(self, self.sessions)

    @contextmanager
    def running(self) -> Iterator["StandInTarget"]:
        """With one rank, and a kernel that runs on the host."""
        group = SimpleNamespace(world_size=1)
        with (
            mock.patch.object(runner_v2, "get_tp_group", return_value=group),
            mock.patch.object(walk, "walk_trees", _KernelOnHost(self.watch)),
        ):
            yield self

    def begin(self) -> Any:
        """A record that ends all requests and begins as many."""
        ended = list(self._rows)
        names = [f"request-{self._num_begun + index}" for index in range(self.shape.batch)]
        self._num_begun += len(names)
        lengths, texts = _numbers(self._lengths), _numbers(self._texts)
        self._rows.clear()
        self._proposed.clear()
        requests = []
        for row, name in enumerate(names):
            prompt = prompt_of(row)
            self._rows[name] = row
            texts[row, : len(prompt)], lengths[row] = prompt, len(prompt)
            sampling = params(temperature=0.0, max_tokens=CONTEXT, seed=1)
            requests.append(new(name, prompt, sampling_params=sampling))
        _numbers(self._drafts)[:] = 0
        return scheduled(*requests, finished=ended)

    def next(self) -> Any:
        """A record of the next step for all requests, as vLLM's scheduler would make it."""
        placeholders = dict.fromkeys(self._rows, [-1] * self.shape.lookahead)
        proposed = placeholders if self.shape.is_async else self._proposed
        drafted = {name: tokens for name, tokens in proposed.items() if tokens}
        rows = {name: 1 + len(drafted.get(name, ())) for name in self._rows}
        return scheduled(running=rows, drafted=drafted)

    def launch(self, record: Any) -> Any:
        """A step's output; asynchronously it is settled by `get_output`."""
        with self.watch("begin"):
            self.worker.execute_model(record)
        with self.watch("propose" if self.shape.is_async else "settle"):
            output = self.worker.sample_tokens(None)
        if not self.shape.is_async:
            with self.watch("propose"):
                proposed = self.worker.take_draft_token_ids()
            self._proposed = {}
            if proposed is not None:
                self._proposed.update(zip(proposed.req_ids, proposed.draft_token_ids, strict=True))
        return output

    def sample(self) -> Output:
        """What vLLM's runner does after a forward."""
        names = list(self._rows)
        lengths, texts, drafts = _numbers(self._lengths), _numbers(self._texts), _numbers(self._drafts)
        num_drafted = {name: len(each) for name, each in self.scheduled.scheduled_spec_decode_tokens.items()}
        sampled = []
        for row, name in enumerate(names):
            end = int(lengths[row])
            tokens = outcome(int(texts[row, end - 1]), drafts[row, : num_drafted.get(name, 0)].tolist())
            texts[row, end : end + len(tokens)] = tokens
            lengths[row] += len(tokens)
            sampled.append(tokens)
        num_sampled = [len(tokens) for tokens in sampled]
        _numbers(self._num_sampled)[:] = num_sampled
        self.num_accepted += sum(num_sampled) - len(num_sampled)
        batch = SimpleNamespace(req_ids=names, num_reqs=len(names), idx_mapping=self._batch_rows)
        with self.watch("propose"):
            proposed = self.runner.speculator.propose(batch, None, None, None, None, self._num_sampled)
        drafts[:] = _numbers(proposed)
        return Output(SimpleNamespace(req_ids=names, sampled_token_ids=sampled), self._waited)

    def _waited(self) -> None:
        with self.watch("vLLM"):
            self._wait()


class _KernelOnHost:
    """In place of `walk_trees`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.num_launches = 0

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, slots: int, most_behind: int, num_steps: int, **_: Any) -> None:
            with self._watch("kernel"):
                self.num_launches += 1
                drafts, counts, *given = (
                    _numbers(each) if isinstance(each, Tensor) else each for each in arguments
                )
                drafts[:] = 0
                for request in range(grid[0]):
                    path = _walked(request, given, slots, most_behind, num_steps)
                    drafts[request, : len(path)], counts[request] = path, len(path)

        return launch


def _walked(request: int, given: Sequence[Any], slots: int, most_behind: int, num_steps: int) -> list[int]:
    nodes, heads, request_rows, lengths, texts, _stride, num_sampled = given
    row, node, length = heads[request].tolist()
    text = int(request_rows[request])
    end, path = int(lengths[text]), list[int]()
    if row < 0 or not num_sampled[request] or not 0 <= end - length <= most_behind:
        return path
    tree = nodes[row * slots : (row + 1) * slots]
    for token in texts[text, length:end].tolist():
        found = [child for child, its in _children(tree, node) if its == token]
        if not found:
            return path
        node = found[0]
    while len(path) < num_steps:
        likeliest = int(tree[node % len(tree), 2])
        tokens = [token for child, token in _children(tree, node) if child == likeliest]
        if not tokens:
            break
        node = likeliest
        path += tokens
    return path


def _children(tree: NDArray[np.int32], node: int) -> list[tuple[int, int]]:
    found, _token, first, count = tree[node % len(tree)].tolist()
    if found != node:
        return []
    places = [(child, tree[child % len(tree)].tolist()) for child in range(first, first + count)]
    return [(child, each[1]) for child, each in places if each[0] == child]


def _numbers(tensor: Tensor) -> Any:
    return host_form(tensor).numpy()
