"""How many alternatives the published fan-outs prepare at each depth."""

from ssd.draft.tree.select import geometric_fan_out


def test_geometric_prepares_fewer_the_later_the_rejection() -> None:
    assert geometric_fan_out(16, acceptance=0.5, exponent=1.0, depth=4) == [6, 4, 3, 2]
    assert all(min(geometric_fan_out(width)) >= 1 for width in (1, 12, 64))
