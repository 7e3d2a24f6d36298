"""Faults of self-tests and of the choice of devices."""

from tests.faults.fault import Fault

_SELF = "tests/cli/test_selftest.py"
_PLACEMENT = "tests/runtime/test_placement.py::test_a_draft_takes_what_the_target_leaves"

FAULTS = [
    Fault(
        "a draft sits on the target's GPU though there is another",
        "src/ssd/runtime/host.py",
        "others = [gpu for gpu in gpus if gpu != target]",
        "others = [gpu for gpu in reversed(gpus)]",
        _PLACEMENT,
    ),
    Fault(
        "who shares a device is not counted",
        "src/ssd/engine/model_placement.py",
        "int(_USABLE * free[each.device]) - left[each.device],",
        "needs.weights + needs.kv,",
        "tests/engine/test_model_placement.py::test_one_device_carries_both",
    ),
    Fault(
        "a mode that changes a token passes the self-test",
        "src/ssd/selftest/modes.py",
        "        if same < len(plain.texts):",
        "        if same < 1:",
        f"{_SELF}::test_a_mode_that_changes_a_token_or_shows_nothing_fails",
    ),
    Fault(
        "a part of the self-test that ends early ends all",
        "src/ssd/selftest/results.py",
        "    except Exception as error:",
        "    except ArithmeticError as error:",
        f"{_SELF}::test_what_fails_ends_with_1_and_the_rest_goes_on",
    ),
]
