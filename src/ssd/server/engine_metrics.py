"""What the engine counts itself, for Prometheus: passed on as its last heartbeat had it.

A scrape costs the engine nothing, and figures are at most a heartbeat old.
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ssd.worker.client import EngineClient
from ssd.worker.messages import Heartbeat

_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 64)


class EngineFigures(Collector):
    def __init__(self, client: EngineClient) -> None:
        self._client = client

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        silent = GaugeMetricFamily("ssd_engine_seconds_without_progress", "How long work has been waiting.")
        silent.add_metric([], self._client.seconds_without_progress)
        yield silent
        beat = self._client.heartbeat
        if beat is not None:
            yield from _gauges(beat)
            yield from _totals(beat)
            yield _lengths(beat.stats.lengths)


def _gauges(beat: Heartbeat) -> Iterator[Metric]:
    yield GaugeMetricFamily("ssd_num_requests_running", "Sequences that run.", beat.num_running)
    yield GaugeMetricFamily("ssd_num_requests_waiting", "Sequences that wait.", beat.num_waiting)
    yield GaugeMetricFamily("ssd_kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", beat.kv_usage)
    if beat.is_draft_ready is not None:
        yield GaugeMetricFamily("ssd_draft_up", "1 while the draft is there.", int(beat.is_draft_ready))
    draft = beat.stats.draft
    if draft is not None:
        yield GaugeMetricFamily(
            "ssd_draft_resting",
            "1 while the draft rests: hardly any of its tokens was accepted.",
            int(draft.is_resting),
        )
        yield GaugeMetricFamily("ssd_drafts_ready", "Drafts that are there.", draft.num_ready)
        tenant = GaugeMetricFamily("ssd_draft_tenant", "1: whose share of drafts this is.", labels=["tenant"])
        tenant.add_metric([draft.tenant], 1)
        yield tenant
        yield GaugeMetricFamily("ssd_draft_num_sequences", "Open at the draft.", draft.num_sequences)
        yield GaugeMetricFamily(
            "ssd_draft_kv_usage_perc", "The draft's KV blocks in use, 0 to 1.", draft.kv_usage
        )


def _totals(beat: Heartbeat) -> Iterator[Metric]:
    stats, spec, draft = beat.stats, beat.stats.speculation, beat.stats.draft
    named: dict[str, tuple[str, float]] = {
        "rounds": ("Verifications that decided tokens.", spec.rounds),
        "spec_decode_num_drafts": ("Of these, those that had a draft.", stats.num_drafts),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", spec.drafted),
        "spec_decode_num_accepted_tokens": ("Drafted tokens accepted.", spec.accepted),
        "spec_hits": ("Rounds whose speculation was ready.", spec.hits),
        "engine_steps": ("Steps of the engine.", stats.num_steps),
        "engine_uncaptured_steps": ("Of these, those that no captured step held.", stats.num_uncaptured),
        "engine_step_seconds": ("Seconds in steps.", stats.step_seconds),
        "verify_seconds": ("Of these, in the target's forwards.", stats.verify_seconds),
        "wait_seconds": ("Of these, waiting for the draft.", stats.wait_seconds),
        "host_seconds": ("Of these, neither.", max(0.0, stats.host_seconds)),
    }
    if draft is not None:
        named |= {
            "draft_steps": ("Steps of the draft.", draft.num_steps),
            "draft_seconds": ("Seconds in the draft's steps.", draft.draft_seconds),
            "draft_rows": ("Rows of these, for this tenant.", draft.num_own_rows),
            "draft_connects": ("Times the draft became ready: restarts and one.", draft.num_connects),
            "draft_losses": ("Times the draft was lost.", draft.num_losses),
            "draft_resyncs": ("Times a tree was sent again.", draft.num_resyncs),
            "draft_declined": ("Sequences the draft declined.", draft.num_declined),
            "draft_moved": ("Times a sequence went from one draft to another.", draft.num_moved),
        }
    for name, (text, value) in named.items():
        yield CounterMetricFamily(f"ssd_{name}", text, value)
    misses = CounterMetricFamily("ssd_spec_misses", "Rounds without a ready speculation.", labels=["cause"])
    for cause in ("late", "unknown", "unheard"):
        misses.add_metric([cause], getattr(spec, cause))
    yield misses
    backups = CounterMetricFamily("ssd_spec_backup_used", "Misses that a backup served.", labels=["backup"])
    for backup in ("ngram", "jit"):
        backups.add_metric([backup], getattr(spec, backup))
    yield backups


def _lengths(rounds: dict[int, int]) -> Metric:
    """The engine counts each length; a histogram has how many are at most so long."""
    buckets = [(f"{most:.1f}", sum(n for length, n in rounds.items() if length <= most)) for most in _LENGTHS]
    return HistogramMetricFamily(
        "ssd_drafted_tokens_per_round",
        "Drafted tokens that one verification of one sequence checked.",
        buckets=[*buckets, ("+Inf", sum(rounds.values()))],
        sum_value=sum(length * n for length, n in rounds.items()),
    )
