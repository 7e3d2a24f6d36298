"""Token counts, speculation statistics and timings of a response."""

from collections.abc import Sequence

from ssd.engine.outputs import RequestOutput, SpeculationStats
from ssd.engine.request import Request
from ssd.server.answers import Misses, PromptTokensDetails, RequestTimings, SpeculationUsage, Usage

_COUNTS = ("rounds", "drafted", "accepted", "hits", "late", "unknown", "unheard", "ngram", "jit", "trees")


def usage_of(outputs: Sequence[RequestOutput]) -> Usage:
    """Usage of one response: its prompts and all their sequences."""
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_generated = sum(len(each.token_ids) for output in outputs for each in output.outputs)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(each.num_cached_tokens for each in outputs)
        ),
        speculation=_speculation(outputs),
    )


def usage_so_far(requests: Sequence[Request], num_generated: int) -> Usage:
    num_prompt = sum(len(request.prompt_token_ids) for request in requests)
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_generated,
        total_tokens=num_prompt + num_generated,
    )


def _speculation(outputs: Sequence[RequestOutput]) -> SpeculationUsage:
    stats = [each.speculation for output in outputs for each in output.outputs]
    total = SpeculationStats(**{name: sum(getattr(each, name) for each in stats) for name in _COUNTS})
    return SpeculationUsage(
        rounds=total.rounds,
        drafted=total.drafted,
        accepted=total.accepted,
        accepted_per_round=total.accepted_per_round,
        hits=total.hits,
        misses=Misses(late=total.late, unknown=total.unknown, unheard=total.unheard),
        hit_rate=total.hit_rate,
        ngram=total.ngram,
        jit=total.jit,
        timings=_timings(outputs),
    )


def _timings(outputs: Sequence[RequestOutput]) -> RequestTimings:
    slowest = max((output.timings for output in outputs), key=lambda timings: timings.total)
    return RequestTimings(
        queued=slowest.queued,
        first_token=slowest.first_token,
        total=slowest.total,
        per_output_token=slowest.per_output_token,
    )
