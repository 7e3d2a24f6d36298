"""The small form of `python -m campaigns.server.fuzz`, which sends 20,000 requests."""

from pathlib import Path

from campaigns.server.fuzz import fuzz, fuzzed_server


def test_no_request_makes_the_server_fail_or_hang(tmp_path: Path) -> None:
    with fuzzed_server(tmp_path) as server:
        found = fuzz(server, 300)
    assert not found.faults, str(found)
    assert found.statuses["200"] > 20
    assert found.statuses["400"] > 50
    assert found.slowest < 10
    # Both halves are measured; a small run also learns: caches fill, libraries are loaded.
    assert len(found.memory) > 30
    assert found.growth < 0.3
