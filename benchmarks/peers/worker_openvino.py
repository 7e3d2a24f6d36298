"""OpenVINO GenAI on a CPU: greedy, alone or with a draft model. Depends on openvino_genai and openvino only.

Takes models converted by optimum-cli. Each case has a pipeline of its own.
"""

from typing import Any


def load(job: dict[str, Any]) -> Any:
    import numpy
    import openvino
    import openvino_genai as genai

    properties = {
        "INFERENCE_PRECISION_HINT": "bf16" if job["dtype"] == "bfloat16" else "f32",
        # Its default is 8 bits.
        "KV_CACHE_PRECISION": "bf16" if job["dtype"] == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": max(1, len(job["cores"])),
        "PERFORMANCE_HINT": "LATENCY",
    }

    def pipeline(case: str) -> Any:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 1
        scheduler.max_num_batched_tokens = job["max_model_len"]
        options: dict[str, Any] = {**properties, "scheduler_config": scheduler}
        if case.startswith("draft"):
            options["draft_model"] = genai.draft_model(job["draft"], "CPU", **properties)
        return genai.LLMPipeline(job["model"], "CPU", **options)

    class Tokens(genai.StreamerBase):  # type: ignore[misc]
        def __init__(self, note: Any) -> None:
            super().__init__()
            self._note = note

        def write(self, tokens: Any) -> Any:
            self._note([tokens] if isinstance(tokens, int) else list(tokens))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    pipelines = {case: pipeline(case) for case in job["cases"]}

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        inputs = genai.TokenizedInputs(ids, openvino.Tensor(numpy.ones((1, len(prompt)), dtype=numpy.int64)))
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
        lookahead = case.removeprefix("draft")
        if lookahead.isdigit():
            # Else OpenVINO's own default.
            config.num_assistant_tokens = int(lookahead)
        pipelines[case].generate(inputs, config, Tokens(note))
        return {}

    return generate
