"""Faults of server and worker: leaks, lost answers, open doors, health that lies."""

from tests.faults.fault import Fault

_PRODUCTION = "tests/server/test_production.py::"
_CLIENT = "tests/worker/test_async_llm.py::"

FAULTS = [
    Fault(
        "a client that left is not noticed",
        "src/ssd/server/answering.py",
        '    while (await receive())["type"] != "http.disconnect":\n        pass\n',
        "    await asyncio.sleep(3600)\n",
        f"{_PRODUCTION}test_a_client_that_leaves_frees_its_blocks",
    ),
    Fault(
        "leaving a stream does not abort it",
        "src/ssd/worker/engine_process.py",
        "                inbox.is_abandoned = True\n                self.abort(request.request_id)\n",
        "                inbox.is_abandoned = True\n",
        f"{_CLIENT}test_leaving_a_stream_frees_its_blocks",
    ),
    Fault(
        "unread increments replace each other",
        "src/ssd/worker/engine_process.py",
        "increment if earlier is None else joined(earlier, increment)",
        "increment",
        f"{_CLIENT}test_what_is_not_read_is_joined",
    ),
    Fault(
        "unread increments pile up",
        "src/ssd/worker/engine_process.py",
        "        self._pending[increment.index] = increment if earlier is None else joined(earlier, increment)\n",
        "        key = increment.index if earlier is None else 1000 + len(self._pending)\n"
        "        self._pending[key] = increment\n",
        f"{_CLIENT}test_what_is_not_read_is_joined",
    ),
    Fault(
        "a dead engine leaves its callers waiting",
        "src/ssd/worker/engine_process.py",
        "            self._end(request_id, self.dead_error())\n",
        "            pass\n",
        f"{_CLIENT}test_a_killed_engine_tells_every_caller",
    ),
    Fault(
        "an engine whose server was killed leaves their folder",
        "src/ssd/worker/program.py",
        "end_with_parent(addresses.remove, grace=_STEP_GRACE)",
        "end_with_parent(lambda: None, grace=_STEP_GRACE)",
        f"{_CLIENT}test_an_engine_ends_when_its_parent_is_killed",
    ),
    Fault(
        "health is a process that exists",
        "src/ssd/worker/engine_process.py",
        "late = silent if silent > 2 * HEARTBEAT_SECONDS else 0.0",
        "late = 0.0",
        f"{_CLIENT}test_a_stopped_engine_is_seen_to_stand_still",
    ),
    Fault(
        "speculation: false is ignored",
        "src/ssd/engine/core.py",
        "self._decoder.proposer.is_drafting and self._generations[sequence.seq_id].request.speculation",
        "self._decoder.proposer.is_drafting",
        f"{_CLIENT}test_a_request_can_do_without_speculation",
    ),
    Fault(
        "the queue has no end",
        "src/ssd/server/gate.py",
        "if num_inside >= self._max_inside:",
        "if num_inside < 0:",
        f"{_PRODUCTION}test_a_full_queue_is_answered_with_429",
    ),
    Fault(
        "a key's beginning is enough",
        "src/ssd/server/middleware.py",
        "hmac.compare_digest(offered, key) for",
        "key.startswith(offered) for",
        f"{_PRODUCTION}test_keys_guard_every_route_but_three",
    ),
    Fault(
        "the server ends before its requests",
        "src/ssd/server/run.py",
        "        await asyncio.wait((drained, hurried, dead), return_when=asyncio.FIRST_COMPLETED)\n",
        "        await asyncio.sleep(0.5)\n",
        f"{_PRODUCTION}test_running_requests_finish_when_the_server_is_told_to_end",
    ),
    Fault(
        "the server survives its engine",
        "src/ssd/server/run.py",
        "            return ENGINE_DIED\n        except EngineDeadError:\n",
        "            return 0\n        except EngineDeadError:\n",
        f"{_PRODUCTION}test_a_killed_engine_takes_the_server_with_it",
    ),
    Fault(
        "unknown fields are ignored",
        "src/ssd/server/body.py",
        'extra="forbid", strict=True',
        'extra="ignore", strict=True',
        "tests/server/test_refusals.py::test_a_field_is_refused_by_its_name",
    ),
    Fault(
        "markers that are tokens are forced as text",
        "src/ssd/server/grammars.py",
        'return f"<[{added[text]}]>" if text in added else json.dumps(text)',
        "return json.dumps(text)",
        "tests/server/test_structured.py::test_a_call_that_must_be_made_is_made",
    ),
    Fault(
        "a token that is allowed and not taken comes for ever",
        "src/ssd/engine/grammar.py",
        "self._is_lost |= refused is not None and ",
        "self._is_lost |= False and ",
        "tests/engine/test_grammar.py::"
        "test_an_added_token_that_spells_a_text_ends_it_instead_of_coming_for_ever",
    ),
    Fault(
        "min_p is forgotten",
        "src/ssd/server/prompts.py",
        '"top_k", "min_p", ',
        '"top_k", ',
        "tests/server/test_completions.py::test_every_sampling_parameter_arrives",
    ),
    Fault(
        "offsets start anew in every chunk",
        "src/ssd/server/completions.py",
        "            offset=self._offsets.get(place, 0),\n",
        "            offset=0,\n",
        "tests/server/test_streaming.py::test_completion_logprobs_add_up",
    ),
    Fault(
        "a marker cut in two is missed",
        "src/ssd/server/tools.py",
        "len(self._held) - length_held(self._held, OPEN)",
        "len(self._held)",
        "tests/server/test_tools.py::test_cuts_change_nothing_in_hermes",
    ),
    Fault(
        "a grammar is compiled by the engine's thread",
        "src/ssd/worker/async_llm.py",
        "            await self._process.prepare(params.grammar)\n",
        "            pass\n",
        "tests/server/test_structured.py::test_other_streams_go_on_while_a_large_schema_is_compiled",
    ),
    Fault(
        "a text that left its grammar is an answer",
        "src/ssd/server/serving.py",
        'if each.finish_reason == "error":',
        'if each.finish_reason == "failure":',
        "tests/server/test_structured.py::test_a_text_that_cannot_go_on_is_told_as_an_error",
    ),
    Fault(
        "a server looks for a model's name on the hub as if it were a folder",
        "src/ssd/worker/async_llm.py",
        "open_checkpoint(ready.model)",
        "open_checkpoint(self.config.model)",
        "tests/cli/test_hub.py::test_a_server_gets_ready_and_keeps_the_name_it_was_given",
    ),
]
