"""What the worker changes in vLLM's V2 model runner.

V2 itself samples argmax(z/T + g(seed, position)), with the noise `murmur3`. A drafted token is accepted if it
equals the token that V2 samples, so a seeded request gets the same tokens as from stock vLLM without a draft.
Three things change: V2's speculator, one method of its rejection sampler, and the seed of requests without
one.

Synchronous scheduling: `SilentSpeculator` proposes nothing; the worker gives its proposals to the scheduler,
which sends them with the next step. Asynchronous: the next step is launched before the tokens of this one
reach the host, so `TreeSpeculator` chooses drafted tokens on the device (`device_trees.py`), and the thread
that reads a step's output sends its tokens to the draft. Only `V2RunnerPatch.finish_step` waits for the
device, and nothing here waits for the draft.
"""

# isort: off
import ssd.integrations.vllm.present  # noqa: F401  # says how to get vLLM, before anything else fails

# isort: on
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.device_trees import HEADS, DeviceTrees, empty_nodes, walk_nodes
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.runner_v1 import Settle
from ssd.integrations.vllm.sessions import Sessions
from ssd.integrations.vllm.settings import Settings
from ssd.sampling.coupled import NOTHING, count_accepted, emitted_tokens

WithSessions = Callable[[Callable[[Sessions], Tensor]], Tensor | None]
_POLL_SECONDS = 100e-6
_PADDING = 0
"""Fills up rows of drafted tokens. Any token will do: V2 reads only as many as were scheduled."""


def end_of_work(device: torch.device) -> Callable[[], bool]:
    """A function that says, without waiting, whether all work that is queued now has ended."""
    if device.type == "cpu":
        return lambda: True
    event = torch.Event(device)
    event.record()
    return event.query


class V2RunnerPatch:
    is_async = False

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings) -> None:
        self._runner, self._rows, self._is_coupled = runner, rows, settings.coupled

    @property
    def noise(self) -> str:
        """The name of V2's noise. With float64 it draws other bits, which no draft reproduces."""
        return "murmur3-fp64" if self._runner.model_config.use_fp64_gumbel else "murmur3"

    def device_ready(self) -> None:
        if self._runner.speculator is not None:  # Only the last stage of a pipeline has one.
            self._runner.speculator = SilentSpeculator(self._runner)

    def model_loaded(self) -> None:
        stock = self._runner.rejection_sampler
        if not self._is_coupled or stock is None:
            return
        if type(stock) is not RejectionSampler:
            raise ValueError(
                f"this model has a rejection sampler of its own ({type(stock).__name__}), which SSD cannot "
                'replace: use "coupled": false in additional_config.ssd, or vLLM without SSD'
            )
        self._runner.rejection_sampler = CoupledVerification.like(stock)

    def prepare_step(self, scheduler_output: Any) -> Any:
        """Returns the scheduler's output to pass to V2, and writes its drafted tokens where V2 reads them."""
        self._write_drafts(scheduler_output)
        if not self._is_coupled:
            return scheduler_output
        return with_seeds(scheduler_output, self._seed)

    def _seed(self, request_id: str, own_seed: int | None) -> int:
        """The request's own seed, or one of ours, as int64.

        With a seed V2 does not use a fused sampler, whose noise would not depend on seed and position.
        """
        if own_seed is not None:
            return own_seed
        seed = self._rows.seed_of(request_id)
        return seed - 2**64 if seed >= 2**63 else seed

    def finish_step(self, output: Any, settle: Settle, take_in: Callable[[], object] | None) -> Any:
        """Waits for a step's output, as vLLM would right after this, and passes its tokens to `settle`.

        V2 has only launched the step. While it runs, `take_in` reads the draft's messages: later the device
        would wait for it. None: there is no draft.
        """
        if isinstance(output, AsyncModelRunnerOutput):
            has_ended = end_of_work(self._runner.device)
            while take_in is not None and not has_ended():
                take_in()
                time.sleep(_POLL_SECONDS)
            output = output.get_output()
        settle(output, None)
        return output

    def _write_drafts(self, scheduler_output: Any) -> None:
        """Writes drafted tokens to V2's request states.

        Every rank does this with what the scheduler sent to all, so all ranks verify the same tokens.
        """
        # vLLM pads new requests with placeholders, and zeroes their rows itself.
        begun = {new.req_id for new in scheduler_output.scheduled_new_reqs}
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        drafts = {each: path for each, path in scheduled.items() if each not in begun}
        if not drafts:
            return
        states = self._runner.req_states
        width = states.draft_tokens.shape[1]
        rows = [states.req_id_to_index[request_id] for request_id in drafts]
        tokens = [path + [_PADDING] * (width - len(path)) for path in drafts.values()]
        columns = torch.tensor([[row, *path] for row, path in zip(rows, tokens, strict=True)])
        uploaded = async_tensor_h2d(columns, device=self._runner.device)
        states.draft_tokens[uploaded[:, 0]] = uploaded[:, 1:]


class AsyncV2RunnerPatch(V2RunnerPatch):
    is_async = True

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings, with_sessions: WithSessions) -> None:
        """`with_sessions(work)` returns `work(sessions)`; None if no sessions are open or `work` fails."""
        super().__init__(runner, rows, settings)
        self._with_sessions, self._has_draft = with_sessions, settings.draft is not None
        self._verified = _NO_COUNTS

    def device_ready(self) -> None:
        super().device_ready()
        if self._runner.speculator is not None and self._has_draft:
            self._runner.speculator = TreeSpeculator(self._runner, self._with_sessions)

    def prepare_step(self, scheduler_output: Any) -> Any:
        # The step that starts now verifies what the speculator proposed in the previous step.
        self._verified = getattr(self._runner.speculator, "proposed", _NO_COUNTS)
        return super().prepare_step(scheduler_output)

    def finish_step(self, output: Any, settle: Settle, take_in: Callable[[], object] | None) -> Any:
        """The output of a step that still runs; the thread that reads it passes its tokens to `settle`."""
        if not isinstance(output, AsyncModelRunnerOutput):
            return output
        num_proposed = self._verified.num_proposed
        return SettledOutput(output, lambda decided: settle(decided, num_proposed))

    def _write_drafts(self, scheduler_output: Any) -> None:
        """Nothing to write: V2 keeps the tokens that `TreeSpeculator` has returned."""


@dataclass(frozen=True, slots=True)
class ProposalCounts:
    """How many drafted tokens the device has chosen for each request of a step."""

    request_ids: Sequence[str]
    counts: Tensor
    """On the host, filled by a copy that may still be in flight."""

    def num_proposed(self) -> dict[str, int]:
        """By request. Requires that a later step has ended: then `counts` has been copied."""
        return dict(zip(self.request_ids, self.counts.tolist(), strict=True))


_NO_COUNTS = ProposalCounts((), torch.zeros(0))


class SettledOutput(AsyncModelRunnerOutput):  # type: ignore[misc]  # vLLM has no types here
    """The output of a step that may still run. `get_output` also passes the step's tokens to `settle`."""

    def __init__(self, output: Any, settle: Callable[[Any], None]) -> None:
        self._output, self._settle = output, settle

    def get_output(self) -> Any:
        output = self._output.get_output()
        self._settle(output)
        return output

    def get_kv_connector_output(self) -> Any:
        """vLLM calls it from 0.33 on."""
        return self._output.get_kv_connector_output()


class SilentSpeculator(BaseSpeculator):  # type: ignore[misc]  # vLLM has no types here
    """Proposes nothing: drafted tokens come from the worker, through vLLM's scheduler."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, runner: Any) -> None:
        self.num_speculative_steps = runner.num_speculative_steps
        self._nothing = torch.zeros(
            runner.max_num_reqs, runner.num_speculative_steps, dtype=torch.int64, device=runner.device
        )

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None: ...

    def capture(self) -> None: ...

    def propose(self, input_batch: Any, *_: Any, **__: Any) -> Tensor:
        # A copy: vLLM writes into it.
        return self._nothing[: input_batch.num_reqs].clone()


class TreeSpeculator(SilentSpeculator):
    """Chooses drafted tokens on the device, from the trees of the draft."""

    def __init__(self, runner: Any, with_sessions: WithSessions) -> None:
        super().__init__(runner)
        self._runner, self._with_sessions = runner, with_sessions
        # Before vLLM measures how much memory is left for its KV cache.
        self._nodes = empty_nodes(runner.max_num_reqs, runner.device)
        self._no_heads = torch.full((runner.max_num_reqs, HEADS), -1, dtype=torch.int32, device=runner.device)
        self._trees: tuple[Sessions, DeviceTrees] | None = None
        self.proposed = _NO_COUNTS

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        *_: Any,
        dummy_run: bool = False,
        **__: Any,
    ) -> Tensor:
        if dummy_run:
            return super().propose(input_batch)
        self.proposed = _NO_COUNTS
        drafts: Tensor | None = self._with_sessions(partial(self._chosen, input_batch, num_sampled))
        if drafts is None:
            # No drafts, but the same kernel: vLLM's warm-up compiles it.
            drafts, _counts = self._walk(input_batch, num_sampled, self._no_heads[: input_batch.num_reqs])
        group = get_tp_group()
        if group.world_size > 1:
            # The first rank has the draft; all must verify the same tokens.
            drafts = group.broadcast(drafts, src=0)
        return drafts

    def _chosen(self, input_batch: Any, num_sampled: Tensor, sessions: Sessions) -> Tensor:
        with sessions.speculator.client.pool.lock:
            trees = self._trees_of(sessions)
            changes = trees.collect(sessions.seqs(input_batch.req_ids))
        drafts, counts = self._walk(input_batch, num_sampled, trees.upload(changes))
        self.proposed = ProposalCounts(list(input_batch.req_ids), counts.to("cpu", non_blocking=True))
        return drafts

    def _walk(self, input_batch: Any, num_sampled: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        states = self._runner.req_states
        return walk_nodes(
            self._nodes,
            heads,
            request_rows=input_batch.idx_mapping,
            lengths=states.total_len.gpu,
            texts=states.all_token_ids.gpu,
            num_sampled=num_sampled,
            num_steps=self.num_speculative_steps,
        )

    def _trees_of(self, sessions: Sessions) -> DeviceTrees:
        """The device's copy of the sessions' mirrors. After a pause of drafting both are new."""
        if self._trees is None or self._trees[0] is not sessions:
            self._trees = sessions, DeviceTrees(sessions.speculator.client.mirrors, self._nodes)
        return self._trees[1]


class CoupledVerification(RejectionSampler):  # type: ignore[misc]  # vLLM has no types here
    """Accepts a drafted token if it equals the token that vLLM's sampler samples at its position.

    All rows go through `Sampler.sample`, which is what a step without drafted tokens calls: the same kernels
    and the same noise. Log-probabilities, chunks of rows, grammars and masks are left to vLLM.
    """

    @classmethod
    def like(cls, stock: RejectionSampler) -> "CoupledVerification":
        made: Any = cls.__new__(cls)
        made.__dict__.update(stock.__dict__)
        return made  # type: ignore[no-any-return]

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, processed = self.sampler.sample(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            return_logprobs=True,  # They may be asked for. Seeds alone keep vLLM from its fused sampler.
        )
        starts, ends = cu_num_logits[:-1].long(), cu_num_logits[1:].long()
        # A row's token is compared with the input of the next row: the token drafted for that position.
        drafted = torch.full_like(tokens, NOTHING)
        drafted[:-1] = verify_draft_sampled[1:]
        drafted[ends - 1] = NOTHING
        accepted = count_accepted(tokens, drafted, starts)
        sampled = emitted_tokens(tokens, accepted, starts, self.num_speculative_steps + 1)
        return processed, sampled, (accepted + 1).to(torch.int32)
