"""What the drafts of a pool have done and hold, for metrics. Knows STATS messages; does not know replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.draft.protocol.messages import MAX_COUNT, Stats


@dataclass(slots=True)
class PoolStats:
    """Since the engine started, over all drafts."""

    num_connects: int = 0
    num_losses: int = 0
    num_declined: int = 0
    num_resyncs: int = 0
    num_frames: int = 0
    num_steps: int = 0
    step_seconds: float = 0.0
    """Of the latest draft step."""
    draft_seconds: float = 0.0
    num_sequences: int = 0
    """Open at the drafts, for any target, as they last reported."""
    kv_usage: float = 0.0
    """Of the fullest draft."""
    tenant: str = ""
    """The name that drafts have for this target's key; empty where it has none."""
    num_own_rows: int = 0
    """Of draft steps, computed for that tenant."""
    is_resting: bool = False
    """Drafting is paused for a while: hardly any of its tokens was accepted."""
    num_ready: int = 0
    """Drafts that are ready."""
    num_moved: int = 0
    """Times a sequence went to another draft, because its own was lost, left or stalled."""

    def note_loads(self, latest: Sequence[Stats]) -> None:
        """`latest`: the last STATS of each draft that is connected."""
        self.num_sequences = sum(each.num_sequences for each in latest)
        self.kv_usage = max((each.kv_usage for each in latest), default=0.0)

    def note_work(self, before: Stats, after: Stats) -> None:
        """Adds what a draft did between two of its STATS. Totals stop at MAX_COUNT."""
        rows = max(0, after.num_own_rows - before.num_own_rows)
        self.num_own_rows = min(self.num_own_rows + rows, MAX_COUNT)
        steps, seconds = after.num_steps - before.num_steps, max(0.0, after.seconds - before.seconds)
        if steps > 0:
            self.num_steps = min(self.num_steps + steps, MAX_COUNT)
            self.draft_seconds += seconds
            self.step_seconds = seconds / steps
