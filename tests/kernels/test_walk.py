"""The path that the device takes through a tree is the one that the host would take."""

from collections import Counter

import pytest

from tests.kernels.walk_scene import Scene

SIZES = {1: 260, 2: 140, 4: 100}
"""Requests by the number of drafted tokens."""


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_the_walk_is_that_of_plain_python() -> None:
    kinds, num_paths = Counter[str](), Counter[int]()
    for num_steps, num_requests in SIZES.items():
        scene = Scene(num_steps, num_requests, num_steps)
        drafts, counts = scene.walked()
        expected = [scene.expected(request) for request in range(num_requests)]
        assert drafts == [path + [0] * (num_steps - len(path)) for path in expected]
        assert counts == [*map(len, expected)]
        kinds += scene.kinds
        num_paths.update(counts)
    assert sum(SIZES.values()) >= 500
    # Else the trees would prove nothing.
    assert len(kinds) == 10
    assert min(kinds.values()) > 20, kinds
    assert num_paths[0] < 400, num_paths
    assert min(num_paths[length] for length in range(1, 5)) > 2, num_paths
