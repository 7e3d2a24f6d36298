"""The small form of `python -m campaigns.e2e.load`, which takes 200 clients and ten minutes."""

from pathlib import Path

from campaigns.e2e.load import Load, run


def test_a_server_under_load_answers_everyone_as_if_they_were_alone(tmp_path: Path) -> None:
    # So soon after the start memory still grows: buffers, compiled grammars, metrics' labels.
    load = Load(clients=24, seconds=10, num_cases=40, num_kills=1, growth=0.3)
    report = run(load, tmp_path)
    assert report.is_perfect, str(report)
    assert report.metrics["draft_losses_total"] == 1
    assert report.tally.num_429 > 0
    assert all(report.tally.done[manner] for manner in ("read", "dawdle", "leave", "vanish", "whole"))
