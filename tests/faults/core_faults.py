"""Faults of who computes on which cores."""

from tests.faults.fault import Fault

_CORES = "src/ssd/runtime/cores.py"
_TEST = "tests/runtime/test_cores.py"
_OWN = "tests/engine/test_own_cores.py"
_ELSEWHERE = "tests/e2e/test_elsewhere.py"

FAULTS = [
    Fault(
        "the split ignores siblings",
        _CORES,
        "cores = tuple(siblings[0] for siblings in groups) if len(groups) > 1 else groups[0]",
        "cores = tuple(sorted(core for siblings in groups for core in siblings))",
        f"{_TEST}::test_physical_cores_are_shared_out",
    ),
    Fault(
        "a sibling of the other side's core counts as free",
        _CORES,
        "if len(left) == len(siblings)]",
        "if left]",
        f"{_TEST}::test_the_other_side_gets_the_rest",
    ),
    Fault(
        "one physical core is not parted",
        _CORES,
        "if len(groups) > 1 else groups[0]",
        "if groups else ()",
        f"{_TEST}::test_never_the_same_core_and_siblings_only_without_a_choice",
    ),
    Fault(
        "only the old name of the siblings' list is read",
        _CORES,
        "for name in _SIBLINGS:",
        "for name in _SIBLINGS[1:]:",
        f"{_TEST}::test_siblings_are_those_the_system_tells",
    ),
    Fault(
        "with only the draft's cores named the target has no cores of its own",
        "src/ssd/engine/drafting.py",
        "return replace(config, cores=split.target, draft=replace(draft, cores=split.draft))",
        "return replace(config, cores=config.cores or split.target, draft=replace(draft, cores=split.draft)) "
        "if not draft.cores else config",
        f"{_OWN}::test_each_side_gets_its_own",
    ),
    Fault(
        "a failed start keeps the cores",
        "src/ssd/engine/build.py",
        "    with restore_cores_on_error():\n        return",
        "    if True:\n        return",
        f"{_OWN}::test_of_a_start_that_fails_nothing_remains",
    ),
    Fault(
        "a failed switch keeps the cores",
        "src/ssd/engine/build.py",
        "    with restore_cores_on_error():\n        decoder",
        "    if True:\n        decoder",
        f"{_OWN}::test_of_a_switch_that_fails_nothing_remains",
    ),
    Fault(
        "a failed bench keeps the cores",
        "src/ssd/bench/engines.py",
        "            self.engine.close()\n            raise",
        "            raise",
        f"{_OWN}::test_of_a_bench_that_fails_nothing_remains",
    ),
    Fault(
        "threads born in a failed start stay on its cores",
        _CORES,
        "_place({0, *_threads()} - older, cores)",
        "_place({0}, cores)",
        f"{_TEST}::test_what_fails_takes_nobody_along",
    ),
    Fault(
        "a failed start moves threads that were there before it, off their cores",
        _CORES,
        "_place({0, *_threads()} - older, cores)",
        "_place({0, *_threads()}, cores)",
        f"{_TEST}::test_what_fails_takes_nobody_along",
    ),
    Fault(
        "cores without affinity: every process is taken for one that can be pinned",
        _CORES,
        '    return hasattr(os, "sched_setaffinity") and hasattr(os, "sched_getaffinity")',
        "    return True",
        f"{_ELSEWHERE}::test_every_mode_writes_the_same",
    ),
    Fault(
        "cores without affinity: nobody is told",
        _CORES,
        "        _warn_that_pinning_is_unsupported()\n",
        "",
        f"{_ELSEWHERE}::test_every_mode_writes_the_same",
    ),
    Fault(
        "the doctor reads /proc, whether or not there is one (cores)",
        "src/ssd/cli/machine.py",
        "    except OSError:\n",
        "    except PermissionError:\n",
        f"{_ELSEWHERE}::test_the_doctor_says_what_it_cannot_do",
    ),
]
