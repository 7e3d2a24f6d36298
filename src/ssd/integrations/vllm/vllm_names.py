"""Every name of vLLM that this package uses, by the model runner that needs it.

A file of vLLM, then its names, one a line. `contract.py` checks them.
"""

from typing import NamedTuple


class Names(NamedTuple):
    overridden: str
    """Methods that vLLM calls and SSD overrides: their parameters must be exactly these."""
    called: str
    """Functions and classes that SSD calls; parameters after `*` are passed by keyword.

    They may have further parameters with defaults.
    """
    read: str
    """Values that SSD reads or sets."""


BOTH = Names(
    overridden="""
v1/worker/gpu_worker.py
    Worker.__init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=...)
    Worker.init_device(self)
    Worker.load_model(self, *, load_dummy_weights=...)
    Worker.compile_or_warm_up_model(self)
    Worker.execute_model(self, scheduler_output)
    Worker.sample_tokens(self, grammar_output)
    Worker.take_draft_token_ids(self)
    Worker.shutdown(self)
v1/worker/cpu_worker.py
    CPUWorker.__init__(self, vllm_config, local_rank, rank, distributed_init_method, is_driver_worker=...)
    CPUWorker.init_device(self)
    CPUWorker.load_model(self, *, load_dummy_weights=...)
    CPUWorker.compile_or_warm_up_model(self)
    CPUWorker.execute_model(self, scheduler_output)
    CPUWorker.sample_tokens(self, grammar_output)
    CPUWorker.take_draft_token_ids(self)
    CPUWorker.shutdown(self)
""",
    called="""
v1/outputs.py
    DraftTokenIds(*, req_ids, draft_token_ids)
distributed/parallel_state.py
    get_world_group()
    GroupCoordinator.broadcast_object(obj, *, src)
platforms/interface.py
    Platform.is_cpu()
    Platform.is_cuda_alike()
utils/torch_utils.py
    async_tensor_h2d(data, device)
config/model.py
    ModelConfig.get_vocab_size()
""",
    read="""
v1/worker/gpu_worker.py
    Worker.model_runner
    Worker.vllm_config
    Worker.rank
v1/outputs.py
    ModelRunnerOutput.req_ids
    ModelRunnerOutput.sampled_token_ids
v1/core/sched/output.py
    SchedulerOutput.scheduled_new_reqs
    SchedulerOutput.scheduled_spec_decode_tokens
    SchedulerOutput.num_scheduled_tokens
    SchedulerOutput.total_num_scheduled_tokens
    SchedulerOutput.finished_req_ids
    SchedulerOutput.num_spec_tokens_to_schedule
    NewRequestData.req_id
    NewRequestData.prompt_token_ids
    NewRequestData.mm_features
    NewRequestData.sampling_params
    NewRequestData.pooling_params
    NewRequestData.prompt_embeds
    NewRequestData.prefill_token_ids
    SchedulerOutput.preempted_req_ids
sampling_params.py
    SamplingParams.seed
    SamplingParams.temperature
    SamplingParams.top_k
    SamplingParams.top_p
    SamplingParams.min_p
    SamplingParams.repetition_penalty
    SamplingParams.presence_penalty
    SamplingParams.frequency_penalty
    SamplingParams.min_tokens
    SamplingParams.max_tokens
    SamplingParams.all_stop_token_ids
    SamplingParams.bad_words_token_ids
    SamplingParams.extra_args
platforms/__init__.py
    current_platform
platforms/interface.py
    Platform.device_name
config/model.py
    ModelConfig.model
    ModelConfig.tokenizer
    ModelConfig.tokenizer_revision
    ModelConfig.trust_remote_code
    ModelConfig.max_model_len
config/scheduler.py
    SchedulerConfig.max_num_seqs
    SchedulerConfig.async_scheduling
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
    VllmConfig.model_config
    VllmConfig.parallel_config
    VllmConfig.scheduler_config
    VllmConfig.speculative_config
    VllmConfig.additional_config
    VllmConfig.instance_id
    VllmConfig.use_v2_model_runner
""",
)
"""Names that both model runners need."""

V1 = Names(
    overridden="""
v1/sample/sampler.py
    Sampler.forward(self, logits, sampling_metadata, predict_bonus_token=..., logprobs_mode_override=...)
    Sampler.sample(self, logits, sampling_metadata, logprobs_mode_override=...)
v1/sample/rejection_sampler.py
    RejectionSampler.forward(self, metadata, draft_probs, logits, sampling_metadata)
""",
    called="""
v1/sample/sampler.py
    Sampler(logprobs_mode, use_fp64_gumbel)
    Sampler.apply_logits_processors(logits, sampling_metadata, *, predict_bonus_token)
    Sampler.apply_temperature(logits, temp, all_random)
    Sampler.greedy_sample(logits)
    Sampler.compute_logprobs(logits)
v1/sample/rejection_sampler.py
    RejectionSampler(sampler)
    RejectionSampler.apply_logits_processors(logits, sampling_metadata, metadata)
    RejectionSampler._get_logprobs_tensors(max_num_logprobs, metadata, logits, target_logits, \
bonus_logits, sampled_token_ids)
v1/sample/thinking_budget_state.py
    ThinkingBudgetStateHolder.has_tracked_requests()
v1/sample/logits_processor/__init__.py
    LogitsProcessors()
v1/sample/logits_processor/builtin.py
    MinTokensLogitsProcessor.apply_with_spec_decode(logits, num_draft_tokens)
v1/sample/ops/topk_topp_sampler.py
    apply_top_k_top_p(logits, k, p)
v1/spec_decode/custom_class_proposer.py
    create_custom_proposer(vllm_config)
v1/outputs.py
    SamplerOutput(*, sampled_token_ids, logprobs_tensors)
""",
    read="""
v1/worker/gpu_model_runner.py
    GPUModelRunner.sampler
    GPUModelRunner.rejection_sampler
    GPUModelRunner.input_batch
v1/worker/gpu_input_batch.py
    InputBatch.req_ids
    InputBatch.num_tokens_no_spec
v1/sample/sampler.py
    Sampler.logprobs_mode
    Sampler.use_fp64_gumbel
v1/sample/rejection_sampler.py
    RejectionSampler.sampler
v1/sample/logits_processor/state.py
    LogitsProcessors.argmax_invariant
    LogitsProcessors.non_argmax_invariant
v1/sample/logits_processor/builtin.py
    MinTokensLogitsProcessor.min_toks
    LogitBiasLogitsProcessor.biases
v1/sample/metadata.py
    SamplingMetadata.temperature
    SamplingMetadata.all_greedy
    SamplingMetadata.all_random
    SamplingMetadata.top_k
    SamplingMetadata.top_p
    SamplingMetadata.max_num_logprobs
    SamplingMetadata.logprob_token_ids
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
config/model.py
    PROCESSED_LOGPROBS_MODES
""",
)
"""vLLM calls `create_custom_proposer`, which makes our proposer."""

V2 = Names(
    overridden="""
v1/worker/gpu/spec_decode/rejection_sampler.py
    RejectionSampler._verify(self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, \
idx_mapping_np, expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, verify_draft_sampled)
v1/worker/gpu/spec_decode/speculator.py
    BaseSpeculator.init_cudagraph_manager(self, cudagraph_mode)
    BaseSpeculator.capture(self)
""",
    called="""
v1/worker/gpu/sample/sampler.py
    Sampler.sample(logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids, \
expanded_local_pos, seq_lens_upper_bound_np, *, return_logprobs)
v1/worker/gpu/spec_decode/speculator.py
    BaseSpeculator.propose(input_batch, attn_metadata, slot_mappings, last_hidden_states, aux_hidden_states, \
num_sampled, num_rejected, last_sampled, next_prefill_tokens, temperature, seeds)
v1/outputs.py
    AsyncModelRunnerOutput.get_output()
distributed/parallel_state.py
    get_tp_group()
    GroupCoordinator.broadcast(input_, *, src)
""",
    read="""
v1/worker/gpu/model_runner.py
    GPUModelRunner.speculator
    GPUModelRunner.rejection_sampler
    GPUModelRunner.req_states
    GPUModelRunner.num_speculative_steps
    GPUModelRunner.max_num_reqs
    GPUModelRunner.device
    GPUModelRunner.model_config
v1/worker/gpu/states.py
    RequestState.draft_tokens
    RequestState.req_id_to_index
    RequestState.total_len
    RequestState.all_token_ids
v1/worker/gpu/buffer_utils.py
    StagedWriteTensor.gpu
v1/worker/gpu/input_batch.py
    InputBatch.num_reqs
    InputBatch.req_ids
    InputBatch.idx_mapping
v1/worker/gpu/spec_decode/rejection_sampler.py
    RejectionSampler.sampler
    RejectionSampler.num_speculative_steps
distributed/parallel_state.py
    GroupCoordinator.world_size
config/model.py
    ModelConfig.use_fp64_gumbel
""",
)
"""vLLM calls `propose`; ours takes any arguments after the batch."""
