"""Faults of asynchronous drafting on vLLM's V2 runner: the walk, the upload, positions. No test needs vLLM."""

from tests.faults.fault import Fault

_WALK, _TREES = "src/ssd/kernels/walk.py", "src/ssd/integrations/vllm/device_trees.py"
_MIRRORS, _RUNNER = "src/ssd/draft/client/mirrors.py", "src/ssd/integrations/vllm/runner_v2.py"
_WALKED = "tests/kernels/test_walk.py::test_the_walk_is_that_of_plain_python"
_OF_TREES, _OF_RUNNER = "tests/kernels/test_device_trees.py", "tests/kernels/test_tree_speculator.py"
_CHOSEN = f"{_OF_TREES}::test_the_device_chooses_what_the_host_would_choose"
_OWN_TEXT = f"{_OF_RUNNER}::test_each_request_continues_its_own_text"
_PAUSED = f"{_OF_RUNNER}::test_a_pause_of_drafting_leaves_nothing_behind"
_SETTLED = f"{_OF_RUNNER}::test_a_step_settles_with_what_was_proposed_for_it"

FAULTS = [
    Fault(
        "the last token of two late steps is one too many",
        _WALK,
        "(behind <= most_behind)",
        "(behind < most_behind)",
        _WALKED,
    ),
    Fault(
        "a text that is shorter than its tree is drafted for",
        _WALK,
        " & (behind >= 0)",
        "",
        _WALKED,
    ),
    Fault(
        "who has sampled nothing is drafted for",
        _WALK,
        " & has_sampled",
        "",
        _WALKED,
    ),
    Fault(
        "the tokens of the request's place in the batch are followed",
        _WALK,
        "texts + text * text_stride",
        "texts + request * text_stride",
        _WALKED,
    ),
    Fault(
        "a text that leaves the tree stays where it was",
        _WALK,
        """        node = tl.max(tl.where(is_token, children, -1), 0)
        is_known = node >= 0
""",
        """        child = tl.max(tl.where(is_token, children, -1), 0)
        node = tl.where(child >= 0, child, node)
""",
        _WALKED,
    ),
    Fault(
        "a text is followed to a node that is written over",
        _WALK,
        "is_there = is_child & (tl.load(at, mask=is_child, other=-1) == children)",
        "is_there = is_child",
        _WALKED,
    ),
    Fault(
        "a child that is written over is drafted",
        _WALK,
        "is_known = is_known & (tl.load(at, mask=is_known, other=-1) == child)",
        "is_known = is_known",
        _WALKED,
    ),
    Fault(
        "a node without children leads on",
        _WALK,
        "        is_known = is_known & (tl.load(own + 3, mask=is_known, other=0) > 0)\n",
        "",
        _WALKED,
    ),
    Fault(
        "only one late step is followed",
        _TREES,
        "most_behind=2 * (num_steps + 1)",
        "most_behind=num_steps + 1",
        _OWN_TEXT,
    ),
    Fault(
        "a tree begins where the text ends",
        _TREES,
        "mirrors.root[known], mirrors.root_length[known])",
        "mirrors.root[known], mirrors.length[known])",
        _CHOSEN,
    ),
    Fault(
        "a mirror that misses a frame is drafted from",
        _TREES,
        " & ~mirrors.is_out_of_sync[asked[rows]]",
        "",
        f"{_OF_TREES}::test_what_no_draft_has_gets_nothing",
    ),
    Fault(
        "a closed mirror is drafted from",
        _TREES,
        "(mirrors.epoch[asked[rows]] > 0) & ",
        "",
        f"{_OF_TREES}::test_what_no_draft_has_gets_nothing",
    ),
    Fault(
        "a seq that the device has no room for has a tree",
        _TREES,
        "(asked >= 0) & (asked < self._num_sequences)",
        "(asked >= 0)",
        f"{_OF_TREES}::test_a_seq_beyond_the_copy_gets_nothing",
    ),
    Fault(
        "nodes that the device has no room for are uploaded",
        _TREES,
        "        places = places[places < self._num_sequences * SLOTS]\n",
        "",
        f"{_OF_TREES}::test_a_seq_beyond_the_copy_gets_nothing",
    ),
    Fault(
        "nodes are uploaded one place further on",
        _TREES,
        "written[:, 0].long()",
        "written[:, 0].long() + 1",
        _CHOSEN,
    ),
    Fault(
        "nodes that were there before are not uploaded",
        _MIRRORS,
        "self._changes = [np.flatnonzero(self.ids != _EMPTY)]",
        "self._changes = []",
        f"{_OF_TREES}::test_nodes_that_were_there_before_the_copy_are_copied",
    ),
    Fault(
        "a change is uploaded in every step",
        _MIRRORS,
        "changes, self._changes = self._changes, []",
        "changes = self._changes",
        f"{_OF_TREES}::test_a_step_without_news_writes_nothing",
    ),
    Fault(
        "a new family is not uploaded with its parent",
        _MIRRORS,
        "self._note(place, above)",
        "self._note(place)",
        _CHOSEN,
    ),
    Fault(
        "a new root is not uploaded",
        _MIRRORS,
        """        self.ids[place], self.counts[place] = roots, 0
        self._note(place)
""",
        """        self.ids[place], self.counts[place] = roots, 0
""",
        f"{_OF_TREES}::test_a_root_without_children_is_copied",
    ),
    Fault(
        "the device keeps the nodes of a request that ended",
        _MIRRORS,
        "self._note(start + np.flatnonzero(self.ids[start : start + SLOTS] != _EMPTY))",
        "pass",
        f"{_OF_TREES}::test_nothing_is_left_of_a_request_whose_seq_another_has",
    ),
    Fault(
        "rows of the batch are taken for rows of the texts",
        _RUNNER,
        "request_rows=input_batch.idx_mapping",
        "request_rows=torch.arange(input_batch.num_reqs)",
        _OWN_TEXT,
    ),
    Fault(
        "every request has sampled",
        _RUNNER,
        "            num_sampled=num_sampled,\n",
        "            num_sampled=torch.ones_like(num_sampled),\n",
        f"{_OF_RUNNER}::test_a_request_that_has_sampled_nothing_gets_nothing",
    ),
    Fault(
        "trees are taken in another order than requests",
        _RUNNER,
        "sessions.seqs(input_batch.req_ids)",
        "sessions.seqs(sorted(input_batch.req_ids))",
        _OWN_TEXT,
    ),
    Fault(
        "after a pause the old trees are drafted from",
        _RUNNER,
        "self._trees is None or self._trees[0] is not sessions",
        "self._trees is None",
        _PAUSED,
    ),
    Fault(
        "proposals from before a pause are counted again",
        _RUNNER,
        "        self.proposed = _NO_COUNTS\n        drafts: Tensor",
        "        drafts: Tensor",
        _PAUSED,
    ),
    Fault(
        "a step counts the proposals for the next one",
        _RUNNER,
        "num_proposed = self._verified.num_proposed",
        "num_proposed = self._runner.speculator.proposed.num_proposed",
        _SETTLED,
    ),
    Fault(
        "a step's proposals are looked up when its output is read",
        _RUNNER,
        """        num_proposed = self._verified.num_proposed
        return SettledOutput(output, lambda decided: settle(decided, num_proposed))
""",
        """        return SettledOutput(output, lambda decided: settle(decided, self._verified.num_proposed))
""",
        _SETTLED,
    ),
    Fault(
        "each rank verifies what it has chosen itself",
        _RUNNER,
        "            drafts = group.broadcast(drafts, src=0)\n",
        "            group.broadcast(drafts, src=0)\n",
        f"{_OF_RUNNER}::test_all_ranks_verify_the_tokens_of_the_first",
    ),
]
