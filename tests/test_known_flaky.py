"""The list of tests that may fail stays short; each entry names a test that exists, a cause and a date."""

import datetime
import tomllib

from tests.conftest import FLAKY

MOST = 5


def test_the_list_of_flaky_tests_is_short_and_says_why() -> None:
    listed = tomllib.loads(FLAKY.read_text()).get("test", [])
    assert len(listed) <= MOST
    for each in listed:
        path, _, name = each["name"].partition("::")
        assert (
            f"def {name.partition('[')[0].rpartition('::')[2]}(" in (FLAKY.parent.parent / path).read_text()
        )
        assert each["cause"]
        assert isinstance(each["since"], datetime.date)
