"""What an answer says it used."""

from ssd.engine.outputs import CompletionOutput, RequestOutput, Timings
from ssd.server.answers import PromptTokensDetails, usage_of


def output(num_prompt: int, num_cached: int) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=(5,) * num_prompt,
        prompt_logprobs=None,
        outputs=(CompletionOutput(0, "a", (7, 8), "length"),),
        seed=0,
        num_cached_tokens=num_cached,
        num_preemptions=0,
        timings=Timings(0.0, 0.1, 0.2, 2),
    )


def test_several_prompts_are_counted_together() -> None:
    usage = usage_of([output(40, 32), output(20, 0), output(70, 64)])
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (130, 6, 136)
    assert usage.prompt_tokens_details == PromptTokensDetails(cached_tokens=96)
