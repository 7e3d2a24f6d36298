"""Faults of who watches child processes, and of `ssd serve --engine vllm`."""

from tests.faults.fault import Fault

_GROUP = "src/ssd/processes/process_group.py"
_CHILD, _LIFELINE = "src/ssd/processes/child.py", "src/ssd/processes/lifeline.py"
_PAIR, _PLACEMENT = "src/ssd/integrations/vllm/pair.py", "src/ssd/integrations/vllm/placement.py"
_COMMAND = "src/ssd/cli/serve_vllm.py"
_OF_CHILD, _OF_PAIR = "tests/processes/test_child.py", "tests/vllm/test_pair.py"

FAULTS = [
    Fault(
        "what a child started outlives it",
        _CHILD,
        "            kill_group(process.pid)\n",
        "            pass\n",
        f"{_OF_CHILD}::test_what_it_started_ends_with_it",
    ),
    Fault(
        "waiting for a restart counts as life",
        _CHILD,
        "return self._ended_at - self._healthy_since > _LONG_LIFE",
        "return self._clock() - self._healthy_since > _LONG_LIFE",
        f"{_OF_CHILD}::test_each_new_start_waits_longer_until_one_lived_long",
    ),
    Fault(
        "loading counts as life",
        _CHILD,
        "None if self._tells_ready else now, None",
        "now, None",
        f"{_OF_CHILD}::test_loading_is_no_long_life",
    ),
    Fault(
        "a restarted child gets no first line",
        _CHILD,
        "        self._write(self._process, self._first_line)\n",
        "        self._write(self._process, self._first_line)\n        self._first_line = b''\n",
        f"{_OF_CHILD}::test_its_first_line_is_told_with_every_start",
    ),
    Fault(
        "an orphan that hears no signal lives on",
        _LIFELINE,
        "        kill_group(os.getpid())\n    os.kill(os.getpid(), signal.SIGKILL)\n",
        "        pass\n",
        f"{_OF_CHILD}::test_a_killed_parent_takes_all_with_it",
    ),
    Fault(
        "who tidies up after others is killed with them",
        _GROUP,
        "if _TRACKER not in _command(each)",
        "if each",
        f"{_OF_CHILD}::test_shared_memory_goes_with_who_made_it",
    ),
    Fault(
        "a draft that ended is not started again",
        _PAIR,
        "if code is not None or self._draft.pid is None:",
        "if False:",
        f"{_OF_PAIR}::test_a_draft_that_dies_comes_back_and_the_server_goes_on",
    ),
    Fault(
        "a signal is kept from the server",
        _PAIR,
        "        self._server.signal(number)\n",
        "        self._server.end()\n",
        f"{_OF_PAIR}::test_a_signal_goes_on_to_the_server",
    ),
    Fault(
        "a server that was killed ended well",
        _PAIR,
        "return code if code >= 0 else 128 - code",
        "return max(code, 0)",
        f"{_OF_PAIR}::test_a_server_that_was_killed_is_told_as_shells_do",
    ),
    Fault(
        "ended while it starts, vLLM has failed",
        _PAIR,
        "code in _ENDED_AS_ASKED:",
        "code in (0, -self._asked_by):",
        f"{_OF_PAIR}::test_one_that_calls_every_signal_an_interrupt_has_ended_well",
    ),
    Fault(
        "a draft on vLLM's GPU starts beside it",
        _PAIR,
        "if self._draft is not None and self._awaited is None:",
        "if self._draft is not None:",
        f"{_OF_PAIR}::test_a_draft_on_vllms_gpu_starts_once_vllm_listens",
    ),
    Fault(
        "sockets of vLLM outlive it",
        _COMMAND,
        "            variables[_SOCKETS] = str(folder)\n",
        "            pass\n",
        "tests/cli/test_serve_vllm.py::test_programs_that_run",
    ),
    Fault(
        "a draft elsewhere keeps a GPU from vLLM",
        _PLACEMENT,
        "    draft = config.own_draft\n",
        "    draft = config.draft\n",
        "tests/vllm/test_placement.py::test_vllm_alone_has_all_gpus",
    ),
    Fault(
        "the key stands in the shown command",
        _COMMAND,
        'f"{KEY}=…"',
        'f"{KEY}={self._keys[0]}"',
        "tests/cli/test_serve_vllm.py::test_programs_that_run",
    ),
    Fault(
        "vLLM's routes have no guard",
        _COMMAND,
        """        if self._keys:
            words +=""",
        """        if not self._keys:
            words +=""",
        "tests/cli/test_serve_vllm.py::test_keys_come_with_a_guard_and_are_not_printed",
    ),
]
