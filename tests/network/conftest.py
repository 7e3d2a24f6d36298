"""Hosts for tests; where none can be made, a sentence that says why."""

from collections.abc import Iterator

import pytest

from tests.network.hosts import Network, NetworkError


@pytest.fixture(scope="module")
def _hosts() -> Iterator[Network]:
    try:
        made = Network("target", "draft", "other")
    except NetworkError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def network(_hosts: Network) -> Iterator[Network]:
    """Three hosts, with nothing amiss between them."""
    _hosts.mend()
    yield _hosts
    _hosts.mend()
