"""vLLM's samplers with coupled sampling: token = argmax(z/T + g(seed, position)), with or without a draft.

vLLM's own code processes logits before (penalties, bad words, allowed tokens, grammars, minimum lengths) and
gathers log-probabilities. Truncation is ours: its sums are exact, so that a row keeps the same tokens
whatever else is in the batch. All rows are sampled together, without reading from the device. Knows vLLM's
metadata.
"""

# isort: off
import ssd.integrations.vllm.present  # noqa: F401  # says how to get vLLM, before anything else fails

# isort: on
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.sampling.coupled import NOTHING, count_accepted, decide_tokens, emitted_tokens
from ssd.sampling.draws import Draws, Truncation


def couple(runner: Any, rows: BatchRows) -> None:
    """Replace the runner's samplers by coupled ones."""
    runner.sampler = CoupledSampler(runner, rows)
    if hasattr(runner, "rejection_sampler"):  # The last stage of a pipeline.
        runner.rejection_sampler = CoupledRejectionSampler(runner.sampler)


class CoupledSampler(Sampler):  # type: ignore[misc]  # vLLM has no types here
    def __init__(self, runner: Any, rows: BatchRows) -> None:
        stock = runner.sampler
        super().__init__(stock.logprobs_mode, stock.use_fp64_gumbel)
        self._runner, self._rows = runner, rows

    @property
    def shows_processed(self) -> bool:
        """Whether log-probabilities are returned after temperature and truncation."""
        return self.logprobs_mode in PROCESSED_LOGPROBS_MODES

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,  # noqa: FBT001, FBT002  # vLLM's signature
        logprobs_mode_override: str | None = None,
    ) -> SamplerOutput:
        """A plain row is its text's last one, and is told so: else vLLM, where speculation is on, takes rows
        of requests with a budget for thinking for the first row, which is another's."""
        return super().forward(logits, sampling_metadata, True, logprobs_mode_override)  # noqa: FBT003

    def sample(
        self, logits: Tensor, sampling_metadata: Any, logprobs_mode_override: str | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """What vLLM calls for rows without drafted tokens; `logits` are processed."""
        owners, draws = self.draws(logits, sampling_metadata, None)
        tokens = self.decide(logits, sampling_metadata, draws)
        is_asked = sampling_metadata.max_num_logprobs is not None or sampling_metadata.logprob_token_ids
        if not self.shows_processed or not is_asked:
            return tokens, None
        shown = self.truncated(logits, sampling_metadata, owners)
        return tokens, shown if self.logprobs_mode == "processed_logits" else self.compute_logprobs(shown)

    def decide(self, logits: Tensor, sampling_metadata: Any, draws: Draws) -> Tensor:
        if sampling_metadata.all_greedy:
            tokens: Tensor = self.greedy_sample(logits)
            return tokens
        return decide_tokens(logits, draws)

    def draws(
        self, logits: Tensor, sampling_metadata: Any, num_drafted: list[int] | None
    ) -> tuple[Tensor, Draws]:
        """The batch row of each row of logits, and how its token is sampled."""
        columns = self._columns(len(logits), num_drafted)
        owners, positions, seeds = async_tensor_h2d(columns, logits.device)
        if sampling_metadata.temperature is None:
            return owners, Draws(seeds, positions, torch.zeros(len(logits), device=logits.device))
        temperatures = sampling_metadata.temperature[owners]
        return owners, Draws(seeds, positions, temperatures, _truncation(sampling_metadata, owners, logits))

    def _columns(self, num_rows: int, num_drafted: list[int] | None) -> Tensor:
        batch = self._runner.input_batch
        if len(batch.req_ids) == (num_rows if num_drafted is None else len(num_drafted)):
            return torch.from_numpy(self._rows.decisions(batch, num_drafted))
        # vLLM's warm-up rows belong to no request.
        counts = torch.tensor([1] * num_rows if num_drafted is None else [each + 1 for each in num_drafted])
        owners = torch.arange(len(counts)).repeat_interleave(counts)
        return torch.stack((owners, torch.zeros_like(owners), torch.zeros_like(owners)))

    def truncated(self, logits: Tensor, sampling_metadata: Any, owners: Tensor) -> Tensor:
        """z/T with what truncation drops at −inf, as vLLM shows it."""
        if sampling_metadata.all_greedy:
            return logits
        top_k, top_p = (
            None if each is None else each[owners]
            for each in (sampling_metadata.top_k, sampling_metadata.top_p)
        )
        scores = self.apply_temperature(
            logits.clone(), sampling_metadata.temperature[owners], sampling_metadata.all_random
        )
        kept: Tensor = apply_top_k_top_p(scores, top_k, top_p)
        return kept


class CoupledRejectionSampler(RejectionSampler):  # type: ignore[misc]  # vLLM has no types here
    """Accepts a drafted token if it equals the token that would be sampled without a draft."""

    def __init__(self, sampler: CoupledSampler) -> None:
        super().__init__(sampler)

    def forward(
        self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any
    ) -> SamplerOutput:
        processed = self._processed(metadata, logits, sampling_metadata)
        owners, draws = self.sampler.draws(processed, sampling_metadata, metadata.num_draft_tokens)
        tokens = self.sampler.decide(processed, sampling_metadata, draws)
        output = _emitted(tokens, metadata)
        logprobs = None
        if sampling_metadata.max_num_logprobs is not None:
            shown = logits
            if self.sampler.shows_processed:
                shown = self.sampler.truncated(processed, sampling_metadata, owners)
            logprobs = self._get_logprobs_tensors(
                sampling_metadata.max_num_logprobs,
                metadata,
                logits,
                shown[metadata.target_logits_indices],
                shown[metadata.bonus_logits_indices],
                output,
            )
        return SamplerOutput(sampled_token_ids=output, logprobs_tensors=logprobs)

    def _processed(self, metadata: Any, logits: Tensor, sampling_metadata: Any) -> Tensor:
        """Logits after vLLM's processors; bonus rows first, as vLLM does."""
        if _is_untouched(sampling_metadata):
            return logits.float()
        minimum, given = _minimum_apart(sampling_metadata)
        bonus = logits[metadata.bonus_logits_indices].float()
        bonus = self.sampler.apply_logits_processors(bonus, given, predict_bonus_token=True)
        target = logits[metadata.target_logits_indices].float()
        target = self.apply_logits_processors(target, given, metadata)
        processed = torch.empty_like(logits, dtype=torch.float32)
        processed[metadata.bonus_logits_indices] = bonus
        processed[metadata.target_logits_indices] = target
        for each in minimum:
            # All rows of a text alike: vLLM would count the drafted tokens before its last row for nothing.
            processed = each.apply_with_spec_decode(processed, [n + 1 for n in metadata.num_draft_tokens])
        return processed


def _emitted(tokens: Tensor, metadata: Any) -> Tensor:
    """Accepted tokens and the one after, by batch row, in vLLM's form."""
    drafted = torch.full_like(tokens, NOTHING)
    drafted[metadata.target_logits_indices] = metadata.draft_token_ids.to(tokens.dtype)
    ends = metadata.cu_num_sampled_tokens.long()
    starts = torch.cat((torch.zeros_like(ends[:1]), ends[:-1]))
    accepted = count_accepted(tokens, drafted, starts)
    return emitted_tokens(tokens, accepted, starts, metadata.max_spec_len + 1).to(torch.int32)


def _truncation(sampling_metadata: Any, owners: Tensor, logits: Tensor) -> Truncation | None:
    top_k, top_p = sampling_metadata.top_k, sampling_metadata.top_p
    if top_k is None and top_p is None:
        return None

    def off(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((len(owners),), value, dtype=dtype, device=logits.device)

    # vLLM writes the vocabulary's size where top_k is off.
    ks = off(0, torch.int64) if top_k is None else top_k[owners].long()
    return Truncation(
        off(-torch.inf, torch.float64),
        torch.where(ks >= logits.shape[1], 0, ks),
        off(1.0, torch.float64) if top_p is None else top_p[owners].double(),
    )


def _minimum_apart(sampling_metadata: Any) -> tuple[list[Any], Any]:
    """The processors for minimum lengths, and the metadata without them."""
    others = LogitsProcessors()
    others.argmax_invariant = sampling_metadata.logitsprocs.argmax_invariant
    minimum: list[Any] = []
    for each in sampling_metadata.logitsprocs.non_argmax_invariant:
        is_minimum = isinstance(each, MinTokensLogitsProcessor)
        (minimum if is_minimum else others.non_argmax_invariant).append(each)
    return minimum, replace(sampling_metadata, logitsprocs=others)


def _is_untouched(sampling_metadata: Any) -> bool:
    """Whether no processor of vLLM would change a logit."""
    holder = sampling_metadata.thinking_budget_state_holder
    return (
        sampling_metadata.no_penalties
        and not sampling_metadata.bad_words_token_ids
        and sampling_metadata.allowed_token_ids_mask is None
        and (holder is None or not holder.has_tracked_requests())
        and not any(map(_is_at_work, sampling_metadata.logitsprocs.non_argmax_invariant))
    )


def _is_at_work(processor: Any) -> bool:
    """Of vLLM's own two, by what they have to do; of any other it is not known, so it is."""
    return bool(getattr(processor, "min_toks", True) and getattr(processor, "biases", True))
