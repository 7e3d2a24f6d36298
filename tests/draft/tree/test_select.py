"""How many alternatives the published fan-outs prepare at each depth."""

from ssd.draft.tree.select import GeometricFanOut


def test_geometric_prepares_fewer_the_later_the_rejection() -> None:
    fan = GeometricFanOut(16, acceptance=0.5, exponent=1.0, depth=4)
    assert [fan.at(k) for k in range(6)] == [6, 4, 3, 2, 0, 0]
    assert all(GeometricFanOut(width).at(k) >= 1 for width in (1, 12, 64) for k in range(8))
