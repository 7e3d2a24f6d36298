"""Faults of buckets, static buffers, captured graphs and the plan of a GPU's memory."""

from tests.faults.fault import Fault

_SRC = "src/ssd/runtime"
_TEST = "tests/runtime/test_captured.py"
_EAGER = f"{_TEST}::test_it_computes_what_the_eager_runner_computes"
_DECIDED = f"{_TEST}::test_what_is_decided_follows_from_the_logits_and_stays[graphs]"
_COUNTED = f"{_TEST}::test_what_no_bucket_holds_is_computed_eagerly_said_once_and_counted[graphs]"
_SLOTS = f"{_TEST}::test_a_step_writes_the_slots_of_its_rows_alone[graphs]"
_TILES = f"{_TEST}::test_where_tiles_are_fixed_prompts_have_their_own_and_are_not_replayed"
_MEMORY = "tests/runtime/test_memory.py"
_FITS = f"{_MEMORY}::test_everything_fits_and_nothing_is_left_over"
_DRAFT = "tests/draft/tree/test_captured.py::test_a_replay_is_the_work_itself"
_GROWN = "tests/draft/tree/test_grown.py::test_children_equal_a_forward_from_scratch_after_any_outcomes"

FAULTS = [
    Fault(
        "the graph of a draft forgets what truncation drops",
        "src/ssd/draft/server/device_steps.py",
        "step.choose[bool(self._truncating)]()",
        "step.choose[False]()",
        _GROWN,
    ),
    Fault(
        "a step goes into the graph of the bucket below",
        f"{_SRC}/buckets.py",
        "index = bisect_left(self.sizes, num_rows)",
        "index = max(0, bisect_left(self.sizes, num_rows) - 1)",
        f"{_EAGER}[graphs]",
    ),
    Fault(
        "every step goes into the graph of the largest bucket",
        f"{_SRC}/captured.py",
        "step = self._steps.get((batch.num_rows, kind))",
        "step = self._steps.get((max(self._buckets.sizes), kind))",
        f"{_EAGER}[graphs]",
    ),
    Fault(
        "the graph of another bucket is replayed",
        f"{_SRC}/captured.py",
        "        step.run(batch, finish",
        "        next(iter(self._steps.values())).run(batch, finish",
        _SLOTS,
    ),
    Fault(
        "rows of padding write to a slot of somebody's graph",
        "src/ssd/attention/batch.py",
        "[[0], [0], [self._scratch_slot], [sequence], [1]]",
        "[[0], [0], [self._scratch_slot - 1], [sequence], [1]]",
        _SLOTS,
    ),
    Fault(
        "tables of the step before are read in a graph",
        f"{_SRC}/static.py",
        "        for name in TENSORS:\n            given",
        '        for name in (each for each in TENSORS if each != "tables"):\n            given',
        f"{_EAGER}[graphs]",
    ),
    Fault(
        "draws of the step before decide in a graph",
        f"{_SRC}/static.py",
        "        if draws is not None:\n            _load_draws",
        "        if draws is None:\n            _load_draws",
        _DECIDED,
    ),
    Fault(
        "a graph's truncated rows are decided by one that does not truncate",
        f"{_SRC}/captured.py",
        'return "sampled" if finish.draws.truncation is None else "truncated"',
        'return "sampled"',
        _DECIDED,
    ),
    Fault(
        "logits are handed out where the next graph writes",
        f"{_SRC}/captured.py",
        "finish(step.buffers.logits[: batch.num_wanted].clone())",
        "finish(step.buffers.logits[: batch.num_wanted])",
        _DECIDED,
    ),
    Fault(
        "tokens are handed out where the next graph writes",
        f"{_SRC}/captured.py",
        "step.buffers.tokens[: batch.num_wanted].clone()",
        "step.buffers.tokens[: batch.num_wanted]",
        _DECIDED,
    ),
    Fault(
        "all rows of a graph have logits, wanted or not",
        f"{_SRC}/captured.py",
        "hidden = self._model.hidden(rows).index_select(0, batch.wanted)",
        "hidden = self._model.hidden(rows)",
        f"{_EAGER}[graphs]",
    ),
    Fault(
        "a graph's results lie in memory that graphs share",
        f"{_SRC}/captured.py",
        "buffers.tokens.copy_(self._decision(buffers.logits))",
        'object.__setattr__(buffers, "tokens", self._decision(buffers.logits))',
        _DECIDED,
    ),
    Fault(
        "a graph is captured without a first call",
        f"{_SRC}/capture.py",
        "_WARM_UPS = 2",
        "_WARM_UPS = 0",
        f"{_EAGER}[graphs]",
    ),
    Fault(
        "what a graph cannot hold is captured all the same",
        "src/ssd/selftest/recording.py",
        "    if name in HOST_READS:\n        raise",
        "    if name in UPLOADS:\n        raise",
        f"{_TEST}::test_work_that_depends_on_the_host_is_refused[item-graphs]",
    ),
    Fault(
        "a prompt as long as a bucket is replayed in its graph",
        f"{_SRC}/captured.py",
        "if step is None or not step.buffers.fits(batch):",
        "if step is None:",
        _TILES,
    ),
    Fault(
        "a short prompt goes into the graph of generated rows",
        f"{_SRC}/buckets.py",
        "if self.tile is not None and not all(row.generated for row in rows):",
        "if self.tile is None and not all(row.generated for row in rows):",
        _TILES,
    ),
    Fault(
        "steps without a graph are counted once",
        f"{_SRC}/captured.py",
        "self.num_eager[reason] += 1",
        "self.num_eager[reason] = 1",
        _COUNTED,
    ),
    Fault(
        "every step without a graph is told",
        f"{_SRC}/captured.py",
        "if reason not in self.num_eager:",
        "if reason:",
        _COUNTED,
    ),
    Fault(
        "one graph that is refused ends the start",
        f"{_SRC}/captured.py",
        "except RuntimeError as error:",
        "except KeyError as error:",
        f"{_TEST}::test_a_step_that_cannot_be_captured_is_computed_all_the_same[graphs]",
    ),
    Fault(
        "the plan of memory forgets graphs",
        f"{_SRC}/memory.py",
        "self.free - self.working - self.graphs - int",
        "self.free - self.working - int",
        _FITS,
    ),
    Fault(
        "the plan of memory forgets what a step without a graph works with",
        f"{_SRC}/memory.py",
        "self.free - self.working - self.graphs - int",
        "self.free - self.graphs - int",
        f"{_MEMORY}::test_kv_gets_what_is_left",
    ),
    Fault(
        "graphs are measured when they are gone",
        f"{_SRC}/memory.py",
        "    captured = trial_capture()\n    graphs = after - gpu.free_bytes()\n    del captured\n",
        "    trial_capture()\n    graphs = after - gpu.free_bytes()\n",
        f"{_MEMORY}::test_what_is_rehearsed_is_measured_and_given_back",
    ),
    Fault(
        "more KV is taken than the GPU has beside its graphs",
        f"{_SRC}/kv_planner.py",
        "if needed > plan.kv_bytes:",
        "if needed > plan.total:",
        f"{_MEMORY}::test_what_is_asked_for_is_given_or_refused",
    ),
    Fault(
        "the bar stands still while graphs are captured",
        f"{_SRC}/capture.py",
        "        self._bar.update(1)\n",
        "",
        f"{_MEMORY}::test_each_step_moves_the_bar_and_the_plan_is_said",
    ),
    Fault(
        "the draft's accepted keys are not moved by its graph",
        "src/ssd/draft/server/device_steps.py",
        "        self._parts.model.move(forest.moves)\n",
        "",
        _GROWN,
    ),
    Fault(
        "children lie in memory that the draft's graphs share",
        "src/ssd/draft/server/device_steps.py",
        "        for table, values in zip(self.chosen, found, strict=True):\n            # There are fewer where a "
        "vocabulary is smaller than a family.\n            table[:, : values.shape[1]].copy_(values)",
        "        self.chosen = found",
        f"{_DRAFT}[4-graphs-greedy]",
    ),
]
