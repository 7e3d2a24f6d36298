"""What the worker changes in vLLM's V2 model runner.

V2 samples argmax(z/T + g(seed, position)) by itself, with the noise `murmur3`. A drafted token is accepted if
it equals the token that V2 samples, so tokens are those of stock vLLM without a draft, seed for seed. Three
things change: the speculator, one method of the rejection sampler, and the seed of requests that have none.

Synchronous scheduling: the speculator proposes nothing, and the worker's proposals come back through the
scheduler. Asynchronous: the next step is launched before the tokens of this one reach the host, so the
speculator chooses drafted tokens on the device (`device_trees.py`), and the thread that reads the output
sends the tokens to the draft. Nothing here waits for the device or for the draft.
"""

# isort: off
import ssd.integrations.vllm.present  # noqa: F401  # says how to get vLLM, before anything else fails

# isort: on
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
from ssd.integrations.vllm.device_trees import DeviceTrees
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.runner_v1 import Settle
from ssd.integrations.vllm.sessions import Sessions
from ssd.integrations.vllm.settings import Settings
from ssd.sampling.coupled import NOTHING, count_accepted, emitted_tokens

Draft = Callable[[Callable[[Sessions], Tensor]], Tensor | None]
_PADDING = 0
"""Any token: V2 reads as many drafted tokens as were scheduled."""


class V2Runner:
    is_async = False

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings) -> None:
        self._runner, self._rows, self._is_coupled = runner, rows, settings.coupled

    @property
    def noise(self) -> str:
        """The name of V2's noise. With float64 it draws other bits, which no draft reproduces."""
        return "murmur3-fp64" if self._runner.model_config.use_fp64_gumbel else "murmur3"

    def device_ready(self) -> None:
        if self._runner.speculator is not None:  # The last stage of a pipeline.
            self._runner.speculator = SilentSpeculator(self._runner)

    def model_loaded(self) -> None:
        if self._is_coupled and self._runner.rejection_sampler is not None:
            self._runner.rejection_sampler = CoupledVerification.like(self._runner.rejection_sampler)

    def scheduled(self, scheduler_output: Any) -> Any:
        """The scheduler's output as vLLM's runner gets it; writes its drafted tokens where V2 reads them."""
        self._write_drafts(scheduler_output.scheduled_spec_decode_tokens)
        if not self._is_coupled:
            return scheduler_output
        return with_seeds(scheduler_output, self._seed)

    def _seed(self, request_id: str, brought: int | None) -> int:
        """An explicit seed keeps vLLM from its fused sampler, whose noise is not by seed and position."""
        if brought is not None:
            return brought
        seed = self._rows.seed_of(request_id)
        return seed - 2**64 if seed >= 2**63 else seed

    def decided(self, output: Any, settle: Settle) -> Any:
        """A step's output; passes its tokens to `settle`. Waits for them, as vLLM would a moment later."""
        if isinstance(output, AsyncModelRunnerOutput):
            output = output.get_output()
        settle(output, None)
        return output

    def _write_drafts(self, drafts: dict[str, list[int]]) -> None:
        """On every rank, from what the scheduler sent to all: so all ranks verify the same tokens."""
        if not drafts:
            return
        states = self._runner.req_states
        width = states.draft_tokens.shape[1]
        rows = [states.req_id_to_index[request_id] for request_id in drafts]
        tokens = [path + [_PADDING] * (width - len(path)) for path in drafts.values()]
        columns = torch.tensor([[row, *path] for row, path in zip(rows, tokens, strict=True)])
        uploaded = async_tensor_h2d(columns, device=self._runner.device)
        states.draft_tokens[uploaded[:, 0]] = uploaded[:, 1:]


class AsyncV2Runner(V2Runner):
    is_async = True

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings, draft: Draft) -> None:
        """`draft` calls a function with the open sessions, if there are any."""
        super().__init__(runner, rows, settings)
        self._draft = draft
        self._verified = _NO_COUNTS

    def device_ready(self) -> None:
        if self._runner.speculator is not None:  # The last stage of a pipeline.
            self._runner.speculator = TreeSpeculator(self._runner, self._draft)

    def scheduled(self, scheduler_output: Any) -> Any:
        # The step that begins verifies what the one before it proposed.
        self._verified = self._runner.speculator.proposed
        return super().scheduled(scheduler_output)

    def decided(self, output: Any, settle: Settle) -> Any:
        """The output of a step that still runs; the thread that reads it passes its tokens to `settle`."""
        if not isinstance(output, AsyncModelRunnerOutput):
            return output
        return SettledOutput(output, partial(self._settle, settle, self._verified))

    def _write_drafts(self, drafts: dict[str, list[int]]) -> None:
        """The speculator has written them."""

    def _settle(self, settle: Settle, verified: "ProposalCounts", output: Any) -> None:
        settle(output, verified.num_proposed())


@dataclass(frozen=True, slots=True)
class ProposalCounts:
    """How many drafted tokens the device has chosen for each request of a step."""

    request_ids: Sequence[str]
    counts: Tensor
    """On the host, once the device has copied them there."""

    def num_proposed(self) -> dict[str, int]:
        """Call when a later step has ended."""
        return dict(zip(self.request_ids, self.counts.tolist(), strict=True))


_NO_COUNTS = ProposalCounts((), torch.zeros(0))


class SettledOutput(AsyncModelRunnerOutput):  # type: ignore[misc]  # vLLM has no types here
    """vLLM's output of a running step; whoever reads it settles it."""

    def __init__(self, output: Any, settle: Callable[[Any], None]) -> None:
        self._output, self._settle = output, settle

    def get_output(self) -> Any:
        output = self._output.get_output()
        self._settle(output)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


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
        return self._nothing[: input_batch.num_reqs]


class TreeSpeculator(SilentSpeculator):
    """Chooses drafted tokens on the device, from the trees of the draft."""

    def __init__(self, runner: Any, draft: Draft) -> None:
        super().__init__(runner)
        self._runner, self._draft = runner, draft
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
        self.proposed = _NO_COUNTS
        chosen = None if dummy_run else self._draft(partial(self._chosen, input_batch, num_sampled))
        drafts: Tensor = self._nothing[: input_batch.num_reqs] if chosen is None else chosen
        group = get_tp_group()
        if group.world_size > 1 and not dummy_run:
            # The first rank has the draft; all must verify the same tokens.
            drafts = group.broadcast(drafts.clone(), src=0)
        return drafts

    def _chosen(self, input_batch: Any, num_sampled: Tensor, sessions: Sessions) -> Tensor:
        states, client = self._runner.req_states, sessions.speculator.client
        trees = self._trees_of(sessions)
        with client.pool.lock:
            heads = trees.update(sessions.seqs(input_batch.req_ids))
        drafts, counts = trees.walk(
            heads,
            request_rows=input_batch.idx_mapping,
            lengths=states.total_len.gpu,
            texts=states.all_token_ids.gpu,
            num_sampled=num_sampled,
            num_steps=self.num_speculative_steps,
        )
        self.proposed = ProposalCounts(list(input_batch.req_ids), counts.to("cpu", non_blocking=True))
        return drafts

    def _trees_of(self, sessions: Sessions) -> DeviceTrees:
        """New ones after drafting was paused: their mirrors are others."""
        if self._trees is None or self._trees[0] is not sessions:
            mirrors = sessions.speculator.client.mirrors
            self._trees = sessions, DeviceTrees(mirrors, self._runner.max_num_reqs, self._runner.device)
        return self._trees[1]


class CoupledVerification(RejectionSampler):  # type: ignore[misc]  # vLLM has no types here
    """Accepts a drafted token if it equals the token that vLLM's sampler samples at its position.

    All rows go through `Sampler.sample`, which is what a step without drafted tokens calls: the same kernels
    and the same noise. Log-probabilities, chunks of rows, grammars and masks stay vLLM's.
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
            return_logprobs=True,  # Keeps vLLM from a fused sampler that returns no processed logits.
        )
        starts, ends = cu_num_logits[:-1].long(), cu_num_logits[1:].long()
        # A row samples the token that the next row has as its input.
        drafted = torch.full_like(tokens, NOTHING)
        drafted[:-1] = verify_draft_sampled[1:]
        drafted[ends - 1] = NOTHING
        accepted = count_accepted(tokens, drafted, starts)
        sampled = emitted_tokens(tokens, accepted, starts, self.num_speculative_steps + 1)
        return processed, sampled, (accepted + 1).to(torch.int32)
