"""What the worker changes in vLLM's V2 model runner, under synchronous scheduling.

V2 samples argmax(z/T + g(seed, position)) by itself, with the noise `murmur3`. A drafted token is accepted if
it equals the token that V2 samples, so tokens are those of stock vLLM without a draft, seed for seed. Three
things change: the speculator proposes nothing, one method of the rejection sampler is replaced, and every
request has a seed.
"""

# isort: off
import ssd.integrations.vllm.present  # noqa: F401  # says how to get vLLM, before anything else fails

# isort: on
from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.settings import Settings
from ssd.sampling.coupled import NOTHING, count_accepted, emitted_tokens

_PADDING = 0
"""Any token: V2 reads as many drafted tokens as were scheduled."""


class V2Runner:
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

    def decided(self, output: Any) -> Any:
        """A step's output, with its tokens. Waits for the device, as vLLM would a moment later."""
        return output.get_output() if isinstance(output, AsyncModelRunnerOutput) else output

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
