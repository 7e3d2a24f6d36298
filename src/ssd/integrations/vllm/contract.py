"""Every name and signature of vLLM that this package leans on, and which of them a vLLM at hand lacks.

Read from vLLM's sources without importing them: the same list serves a worker that starts, a test, a doctor,
and a wheel that is only unpacked. `...` in a signature: more may follow, if it has a default.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

OLDEST = (0, 31)
"""The oldest version whose sources were read against this list; the next one was run."""

NAMES = """
v1/worker/gpu_worker.py
    Worker.init_device(self)
    Worker.load_model(self)
    Worker.execute_model(self, scheduler_output)
    Worker.sample_tokens(self, grammar_output)
    Worker.take_draft_token_ids(self)
    Worker.shutdown(self)
    Worker.model_runner
v1/worker/cpu_worker.py
    CPUWorker.init_device(self)
v1/worker/worker_base.py
    WorkerBase.vllm_config
    WorkerBase.rank
v1/worker/gpu_model_runner.py
    GPUModelRunner.sampler
    GPUModelRunner.rejection_sampler
    GPUModelRunner.input_batch
v1/worker/gpu_input_batch.py
    InputBatch.req_ids
    InputBatch.num_tokens_no_spec
v1/sample/sampler.py
    Sampler.__init__(self, logprobs_mode, use_fp64_gumbel)
    Sampler.forward(self, logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
    Sampler.sample(self, logits, sampling_metadata, logprobs_mode_override)
    Sampler.apply_logits_processors(self, logits, sampling_metadata, predict_bonus_token)
    Sampler.apply_temperature(logits, temp, all_random)
    Sampler.greedy_sample(logits)
    Sampler.compute_logprobs(logits)
    Sampler.gather_logprobs(logprobs, num_logprobs, token_ids)
    Sampler.logprobs_mode
    Sampler.use_fp64_gumbel
v1/sample/rejection_sampler.py
    RejectionSampler.__init__(self, sampler, ...)
    RejectionSampler.forward(self, metadata, draft_probs, logits, sampling_metadata)
    RejectionSampler.apply_logits_processors(self, logits, sampling_metadata, metadata)
    RejectionSampler._get_logprobs_tensors(self, max_num_logprobs, metadata, logits, target_logits, \
bonus_logits, sampled_token_ids)
    RejectionSampler.sampler
v1/sample/thinking_budget_state.py
    ThinkingBudgetStateHolder.has_tracked_requests(self)
v1/sample/logits_processor/state.py
    LogitsProcessors.argmax_invariant
    LogitsProcessors.non_argmax_invariant
v1/sample/ops/topk_topp_sampler.py
    apply_top_k_top_p(logits, k, p)
v1/sample/logits_processor/builtin.py
    MinTokensLogitsProcessor.min_toks
    MinTokensLogitsProcessor.apply_with_spec_decode(self, logits, num_draft_tokens)
    LogitBiasLogitsProcessor.biases
v1/sample/metadata.py
    SamplingMetadata.temperature
    SamplingMetadata.all_greedy
    SamplingMetadata.all_random
    SamplingMetadata.top_k
    SamplingMetadata.top_p
    SamplingMetadata.max_num_logprobs
    SamplingMetadata.logprob_token_ids
    SamplingMetadata.output_token_ids
    SamplingMetadata.spec_token_ids
    SamplingMetadata.no_penalties
    SamplingMetadata.bad_words_token_ids
    SamplingMetadata.allowed_token_ids_mask
    SamplingMetadata.logitsprocs
    SamplingMetadata.thinking_budget_state_holder
v1/spec_decode/metadata.py
    SpecDecodeMetadata.draft_token_ids
    SpecDecodeMetadata.num_draft_tokens
    SpecDecodeMetadata.cu_num_sampled_tokens
    SpecDecodeMetadata.target_logits_indices
    SpecDecodeMetadata.bonus_logits_indices
    SpecDecodeMetadata.max_spec_len
v1/spec_decode/custom_class_proposer.py
    create_custom_proposer(vllm_config)
v1/outputs.py
    SamplerOutput.sampled_token_ids
    SamplerOutput.logprobs_tensors
    DraftTokenIds.req_ids
    DraftTokenIds.draft_token_ids
    ModelRunnerOutput.req_ids
    ModelRunnerOutput.sampled_token_ids
v1/core/sched/output.py
    SchedulerOutput.scheduled_new_reqs
    SchedulerOutput.scheduled_spec_decode_tokens
    SchedulerOutput.num_scheduled_tokens
    SchedulerOutput.total_num_scheduled_tokens
    SchedulerOutput.finished_req_ids
    NewRequestData.req_id
    NewRequestData.prompt_token_ids
    NewRequestData.mm_features
    NewRequestData.sampling_params
    NewRequestData.pooling_params
    NewRequestData.prompt_embeds
sampling_params.py
    SamplingParams.seed
    SamplingParams.temperature
    SamplingParams.top_k
    SamplingParams.top_p
    SamplingParams.repetition_penalty
    SamplingParams.presence_penalty
    SamplingParams.frequency_penalty
    SamplingParams.min_tokens
    SamplingParams.max_tokens
    SamplingParams.all_stop_token_ids
    SamplingParams.bad_words_token_ids
    SamplingParams.extra_args
distributed/parallel_state.py
    get_world_group()
    GroupCoordinator.broadcast_object(self, obj, src)
platforms/interface.py
    Platform.is_cpu(self)
    Platform.is_cuda_alike(self)
    Platform.device_name
utils/torch_utils.py
    async_tensor_h2d(data, ...)
config/model.py
    PROCESSED_LOGPROBS_MODES
    ModelConfig.get_vocab_size(self)
    ModelConfig.model
    ModelConfig.tokenizer
    ModelConfig.tokenizer_revision
    ModelConfig.trust_remote_code
    ModelConfig.max_model_len
config/scheduler.py
    SchedulerConfig.max_num_seqs
config/parallel.py
    ParallelConfig.worker_cls
    ParallelConfig.world_size
    ParallelConfig.distributed_executor_backend
    ParallelConfig.tensor_parallel_size
    ParallelConfig.pipeline_parallel_size
    ParallelConfig.prefill_context_parallel_size
config/speculative.py
    SpeculativeConfig.method
    SpeculativeConfig.model
    SpeculativeConfig.num_speculative_tokens
config/vllm.py
    VllmConfig.additional_config
    VllmConfig.instance_id
    VllmConfig.use_v2_model_runner
"""

_MORE = "..."
_DEFAULT = "=…"


def broken(folder: Path) -> list[str]:
    """What of the list the vLLM in this folder (the one that holds `v1`) does not keep."""
    faults, file, names = list[str](), "", dict[str, list[str]]()
    for line in NAMES.strip().split("\n"):
        if line.startswith(" "):
            fault = _fault(names, line.strip())
            faults += [f"{file} has {fault}"] if fault else []
        else:
            file, names = line, _names_of(folder / line)
    return faults


def _fault(names: dict[str, list[str]], what: str) -> str:
    name, _, signature = what.partition("(")
    found = names.get(name)
    if found is None:
        return f"no {name}"
    if not signature:
        return ""
    wanted = [each for each in signature.removesuffix(")").split(", ") if each]
    named = [each.removesuffix(_DEFAULT) for each in found]
    if wanted[-1:] == [_MORE]:
        size = len(wanted) - 1
        fits = named[:size] == wanted[:size] and all(each.endswith(_DEFAULT) for each in found[size:])
    else:
        fits = named == wanted
    return "" if fits else f"{name}({', '.join(found)}), and {what} is needed"


def _names_of(path: Path) -> dict[str, list[str]]:
    """The names that a file defines, `Class.name` within classes, with the parameters of functions."""
    if not path.is_file():
        return {}
    found: dict[str, list[str]] = {}
    for node in ast.parse(path.read_text()).body:
        found.update(_defined(node, ""))
        if isinstance(node, ast.ClassDef):
            for inner in ast.walk(node):
                found.update(_defined(inner, f"{node.name}."))
    return found


def _defined(node: ast.AST, prefix: str) -> Iterator[tuple[str, list[str]]]:
    match node:
        case ast.FunctionDef(name=name, args=args):
            named = [each.arg for each in (*args.posonlyargs, *args.args)]
            first = len(named) - len(args.defaults)
            yield (
                prefix + name,
                [each + _DEFAULT * (place >= first) for place, each in enumerate(named)],
            )
        case ast.Assign(targets=targets):
            yield from ((prefix + name, []) for each in targets for name in _assigned(each))
        case ast.AnnAssign(target=target):
            yield from ((prefix + name, []) for name in _assigned(target))


def _assigned(target: ast.expr) -> Iterator[str]:
    match target:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            yield name
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from _assigned(part)
