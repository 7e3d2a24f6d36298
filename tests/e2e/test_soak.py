"""The small form of `python -m campaigns.e2e.soak`, which takes an hour."""

from pathlib import Path

from campaigns.e2e.hostile import ATTACKS
from campaigns.e2e.soak import soak


def test_harm_beside_honest_traffic_changes_no_answer(tmp_path: Path) -> None:
    report = soak(seconds=25, clients=8, attackers=6, num_cases=30, folder=tmp_path, growth=0.3)
    assert report.is_perfect, str(report)
    assert set(report.harm.tried) >= set(ATTACKS)
    assert report.metrics["draft_losses_total"] >= 1
