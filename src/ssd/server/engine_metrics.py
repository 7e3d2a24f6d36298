"""Prometheus metrics of the engine, read from its last heartbeat.

A scrape costs the engine nothing, and values are at most one heartbeat old.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ssd.worker.async_llm import AsyncLLM
from ssd.worker.messages import Heartbeat

_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)


class EngineFigures(Collector):
    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        silent = GaugeMetricFamily(
            "ssd_engine_seconds_without_progress",
            "Seconds since the engine last made progress on waiting work.",
        )
        silent.add_metric([], self._llm.seconds_without_progress)
        yield silent
        beat = self._llm.heartbeat
        if beat is not None:
            yield from _gauges(beat)
            yield from _totals(beat)
            yield _lengths(beat.stats.lengths)


def _gauges(beat: Heartbeat) -> Iterator[Metric]:
    yield GaugeMetricFamily("ssd_num_requests_running", "Sequences that are running.", beat.num_running)
    yield GaugeMetricFamily("ssd_num_requests_waiting", "Sequences that are waiting.", beat.num_waiting)
    yield GaugeMetricFamily("ssd_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", beat.kv_usage)
    if beat.is_draft_ready is not None:
        yield GaugeMetricFamily("ssd_draft_up", "1 while a draft is connected.", int(beat.is_draft_ready))
    draft = beat.stats.draft
    if draft is not None:
        yield GaugeMetricFamily(
            "ssd_draft_resting",
            "1 while drafting is switched off because too few tokens were accepted.",
            int(draft.is_resting),
        )
        yield GaugeMetricFamily("ssd_drafts_ready", "Number of connected drafts.", draft.num_ready)
        tenant = GaugeMetricFamily(
            "ssd_draft_tenant", "1 for the tenant that this engine uses at its drafts.", labels=["tenant"]
        )
        tenant.add_metric([draft.tenant], 1)
        yield tenant
        yield GaugeMetricFamily(
            "ssd_draft_num_sequences", "Sequences that the draft speculates for.", draft.num_sequences
        )
        yield GaugeMetricFamily(
            "ssd_draft_kv_usage_perc", "Share of the draft's KV blocks in use, 0 to 1.", draft.kv_usage
        )


def _totals(beat: Heartbeat) -> Iterator[Metric]:
    stats, spec, draft = beat.stats, beat.stats.speculation, beat.stats.draft
    named: dict[str, tuple[str, float]] = {
        "rounds": ("Verifications of one sequence.", spec.rounds),
        "spec_decode_num_drafts": ("Verifications that had drafted tokens.", stats.num_drafts),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", spec.drafted),
        "spec_decode_num_accepted_tokens": ("Drafted tokens accepted.", spec.accepted),
        "spec_hits": ("Rounds whose speculation was ready.", spec.hits),
        "engine_steps": ("Engine steps.", stats.num_steps),
        "engine_uncaptured_steps": ("Engine steps that ran without a captured graph.", stats.num_uncaptured),
        "engine_step_seconds": ("Seconds spent in engine steps.", stats.step_seconds),
        "verify_seconds": ("Seconds of engine steps spent in the target's forwards.", stats.verify_seconds),
        "wait_seconds": ("Seconds of engine steps spent waiting for the draft.", stats.wait_seconds),
        "host_seconds": ("Seconds of engine steps spent on the host.", max(0.0, stats.host_seconds)),
    }
    if draft is not None:
        named |= {
            "draft_steps": ("Draft steps.", draft.num_steps),
            "draft_seconds": ("Seconds spent in draft steps.", draft.draft_seconds),
            "draft_rows": ("Rows of draft steps that were for this tenant.", draft.num_own_rows),
            "draft_connects": ("Times a draft became ready, including the first time.", draft.num_connects),
            "draft_losses": ("Times the connection to a draft was lost.", draft.num_losses),
            "draft_resyncs": ("Times a draft sent a whole tree again.", draft.num_resyncs),
            "draft_declined": ("Sequences that a draft declined.", draft.num_declined),
            "draft_moved": ("Times a sequence moved from one draft to another.", draft.num_moved),
        }
    for name, (text, value) in named.items():
        yield CounterMetricFamily(f"ssd_{name}", text, value)
    misses = CounterMetricFamily("ssd_spec_misses", "Rounds without a ready speculation.", labels=["cause"])
    for cause in ("late", "unknown", "unheard"):
        misses.add_metric([cause], getattr(spec, cause))
    yield misses
    backups = CounterMetricFamily(
        "ssd_spec_backup_used", "Misses for which a backup provided drafted tokens.", labels=["backup"]
    )
    for backup in ("ngram", "jit"):
        backups.add_metric([backup], getattr(spec, backup))
    yield backups


def _lengths(rounds: dict[int, int]) -> Metric:
    """The engine counts rounds by length; a histogram's buckets are cumulative."""
    buckets = [(f"{most:.1f}", sum(n for length, n in rounds.items() if length <= most)) for most in _LENGTHS]
    return HistogramMetricFamily(
        "ssd_drafted_tokens_per_round",
        "Drafted tokens that one verification of one sequence checked.",
        buckets=[*buckets, ("+Inf", sum(rounds.values()))],
        sum_value=sum(length * n for length, n in rounds.items()),
    )
