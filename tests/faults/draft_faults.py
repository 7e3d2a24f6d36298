"""Faults of the draft's side, of the mirror and of what crosses between them."""

from tests.faults.fault import Fault

_MIRROR = "tests/draft/client/test_mirrors.py"
_AGREEMENT = "tests/draft/tree/oracle/test_agreement.py"
_MESSAGES = "tests/draft/protocol/test_messages.py"
_GROWN = "tests/draft/tree/test_grown.py"
_FRAMES = "tests/draft/tree/test_equality.py::test_frames_on_arrays"
_QUIET, _LOSSY = f"{_AGREEMENT}::TestQuietWire", f"{_AGREEMENT}::TestLossyWire"
_RULES = f"{_MESSAGES}::test_a_broken_rule_is_refused"

DRAFT = "src/ssd/draft"
_ORACLE = "tests/draft/tree/oracle"
"""What the forest is compared with."""

TREE = [
    Fault(
        "compaction keeps dead nodes",
        "tests/draft/tree/oracle/tree.py",
        "if self.parents[node] in new_index:",
        "if self.parents[node] in new_index or node == self.size - 1:",
        _FRAMES,
    ),
    Fault(
        "compaction forgets to renumber parents",
        "tests/draft/tree/oracle/tree.py",
        "self.parents = [0, *(new_index[self.parents[node]] for node in kept[1:])]",
        "self.parents = [0, *(self.parents[node] for node in kept[1:])]",
        _FRAMES,
    ),
    Fault(
        "compaction drops the newest node",
        "tests/draft/tree/oracle/tree.py",
        "for node in range(self.root + 1, self.size):",
        "for node in range(self.root + 1, self.size - 1):",
        _FRAMES,
    ),
    Fault(
        "values do not add up",
        "tests/draft/tree/oracle/tree.py",
        "self.values.extend([value + logprob for logprob in logprobs])",
        "self.values.extend(logprobs)",
        _FRAMES,
    ),
]

SESSION = [
    Fault(
        "rope position of a branch off by one",
        f"{_ORACLE}/session.py",
        "self.tree, len(self.tokens) - 1\n",
        "self.tree, len(self.tokens)\n",
        _FRAMES,
    ),
    Fault(
        "rope position of a branch off by one, without a model",
        f"{_ORACLE}/session.py",
        "self.tree, len(self.tokens) - 1\n",
        "self.tree, len(self.tokens)\n",
        _QUIET,
    ),
    Fault(
        "a branch does not see its nearest ancestor",
        f"{_ORACLE}/session.py",
        "tree.slots[each] for each in tree.ancestors(node))",
        "tree.slots[each] for each in tree.ancestors(node)[1:])",
        _FRAMES,
    ),
    Fault(
        "places of lost nodes are never free again",
        f"{_ORACLE}/session.py",
        "        self._free_places = [place for place in _all_places() if place not in taken]\n",
        "",
        _FRAMES,
    ),
    Fault(
        "nodes take places in another order than their rows",
        f"{_ORACLE}/session.py",
        "return self._free_places[-1 : -count - 1 : -1]",
        "return self._free_places[-count:]",
        _FRAMES,
    ),
    Fault(
        "a node's own key is not on its path",
        f"{_ORACLE}/session.py",
        "paths = [seen | 1 << place for seen, place in zip(above, places, strict=False)]",
        "paths = [seen for seen, place in zip(above, places, strict=False)]",
        _FRAMES,
    ),
    Fault(
        "a path's own nodes are not moved into the blocks",
        f"{_ORACLE}/session.py",
        "for node in path if tree.slots[node] >= 0]",
        "for node in path[:1] if tree.slots[node] >= 0]",
        _QUIET,
    ),
    Fault(
        "a missing outcome is not noticed",
        f"{_ORACLE}/session.py",
        "        if n > self.n + 1:\n            self.is_out_of_sync = True\n            return None\n",
        "",
        _LOSSY,
    ),
    Fault(
        "an outcome is applied twice",
        f"{_ORACLE}/session.py",
        "if n <= self.n or self.is_out_of_sync:",
        "if n < self.n or self.is_out_of_sync:",
        _LOSSY,
    ),
    Fault(
        "ids are used again after a miss",
        f"{_ORACLE}/session.py",
        "        self.tree.replant(self._next_id, self.tokens[-1])\n        self._next_id += 1\n",
        "        self.tree.replant(self._next_id - 1, self.tokens[-1])\n",
        _QUIET,
    ),
    Fault(
        "ends are grown",
        f"{_ORACLE}/session.py",
        "                tree.slots[index] = BARREN\n",
        "                pass\n",
        _FRAMES,
    ),
    Fault(
        "growth goes beyond the context",
        f"{DRAFT}/server/session.py",
        "min(2 * self.opening.lookahead + 1, self._most_tokens - 2 - len(self.tokens))",
        "2 * self.opening.lookahead + 1",
        f"{_GROWN}::test_nothing_is_grown_beyond_what_is_asked_for",
    ),
    Fault(
        "growth has no depth limit",
        f"{_ORACLE}/session.py",
        "min(self._max_depth, self._max_len - 2 - len(self.tokens))",
        "self._max_len - 2 - len(self.tokens)",
        _FRAMES,
    ),
    Fault(
        "credit is not asked for",
        f"{DRAFT}/server/session.py",
        "self.is_open & has_credit & ~self.is_out_of_sync",
        "self.is_open & ~self.is_out_of_sync",
        f"{_GROWN}::test_without_credit_nothing_grows_and_no_root_is_read",
    ),
    Fault(
        "the next token's position is the node's own",
        f"{_ORACLE}/session.py",
        "position=len(self.tokens) + len(path),",
        "position=len(self.tokens) + max(0, len(path) - 1),",
        _FRAMES,
    ),
]

_MIRRORS = f"{DRAFT}/client/mirrors.py"
MIRROR = [
    Fault(
        "a stale epoch is accepted",
        _MIRRORS,
        "due = inside & (self.epoch[seqs] == heads.epoch) & (heads",
        "due = inside & (heads",
        _LOSSY,
    ),
    Fault(
        "a stale epoch is accepted, one frame",
        _MIRRORS,
        "due = inside & (self.epoch[seqs] == heads.epoch) & (heads",
        "due = inside & (heads",
        f"{_MIRROR}::test_another_epoch_means_nothing",
    ),
    Fault(
        "a gap in the frames is ignored",
        _MIRRORS,
        "gap = due & ((heads.number > self.num_frames[seqs]) | self.is_out_of_sync[seqs]) & (heads.full == 0)",
        "gap = due & self.is_out_of_sync[seqs] & (heads.full == 0)",
        _LOSSY,
    ),
    Fault(
        "a frame is taken twice",
        _MIRRORS,
        "(heads.number >= self.num_frames[seqs])",
        "(heads.number >= self.num_frames[seqs] - 1)",
        f"{_MIRROR}::test_a_frame_that_came_before_is_dropped",
    ),
    Fault(
        "a frame tears other sequences",
        _MIRRORS,
        "            self.is_out_of_sync[seqs[bad]] = True\n",
        "            self.is_out_of_sync[seqs] = True\n",
        f"{_MIRROR}::test_rows_of_one_message_do_not_touch_each_other",
    ),
    Fault(
        "a late token is not looked for",
        _MIRRORS,
        "        self._follow(seqs)\n\n    def advance",
        "\n    def advance",
        _QUIET,
    ),
    Fault(
        "after a miss the draft's new root is not understood",
        _MIRRORS,
        "nearer = (heads.full > 0) | (heads.length > self.root_length[heads.seq])",
        "nearer = (heads.full > 0) | (self.root[heads.seq] == UNNAMED)",
        _QUIET,
    ),
    Fault(
        "an older root replaces a nearer one",
        _MIRRORS,
        "nearer = (heads.full > 0) | (heads.length > self.root_length[heads.seq])",
        "nearer = (heads.full > 0) | (self.root_length[heads.seq] < self.length[heads.seq])",
        f"{_MIRROR}::test_an_older_root_does_not_replace_a_nearer_anchor",
    ),
    Fault(
        "the unknown tokens of a miss are written to another place",
        _MIRRORS,
        "self.recent[owners * _RECENT + positions % _RECENT] = tokens",
        "self.recent[owners * _RECENT + (positions + 1) % _RECENT] = tokens",
        _QUIET,
    ),
    Fault(
        "different roots are not noticed",
        _MIRRORS,
        "(heads.length == self.root_length[seqs]) & (heads.root != self.root[seqs])",
        "(heads.length == self.root_length[seqs]) & (heads.root < 0)",
        f"{_MIRROR}::test_nonsense_tears",
    ),
    Fault(
        "children may come in two parts",
        _MIRRORS,
        "for keys, whose in ((owned << 32 | parents, owned), (groups",
        "for keys, whose in ((groups",
        f"{_MIRROR}::test_nonsense_tears",
    ),
    Fault(
        "what was written over is still believed",
        _MIRRORS,
        "            if view.ids[place] != node:\n                break\n",
        "",
        f"{_MIRROR}::test_a_node_that_was_written_over_ends_the_path",
    ),
]

RUNS = [
    Fault(
        "a run does not see the node it follows",
        f"{_ORACLE}/session.py",
        "last, seen = (positions[0], paths[0]) if nodes else",
        "last, seen = (positions[0], above[0]) if nodes else",
        _FRAMES,
    ),
    Fault(
        "positions of a run are off by one",
        f"{_ORACLE}/session.py",
        "            positions.append(last)\n",
        "            positions.append(last - 1)\n",
        _FRAMES,
    ),
    Fault(
        "a run is kept whatever the model says",
        f"{_ORACLE}/grower.py",
        "            child = tree.child(node, token)\n",
        "            child = tree.first_children[node]\n",
        _FRAMES,
    ),
    Fault(
        "runs where guesses are drawn",
        f"{_ORACLE}/grower.py",
        "if most <= 0 or session.draws:",
        "if most <= 0:",
        _FRAMES,
    ),
    Fault(
        "runs overstep the room of a tree",
        f"{DRAFT}/server/host_steps.py",
        "tokens = tokens[: max(0, room)]",
        "tokens = tokens[:]",
        f"{_GROWN}::test_runs_keep_within_the_room_of_a_tree",
    ),
]

MESSAGES = [
    Fault(
        "ids of NODES need not ascend",
        f"{DRAFT}/protocol/codec.py",
        "    if not (ids > before).all():\n",
        "    if not (ids >= before).all():\n",
        _RULES,
    ),
    Fault(
        "nodes may be older than their root",
        f"{DRAFT}/protocol/codec.py",
        "    before[(np.cumsum(heads.num_nodes) - heads.num_nodes)[some]] = heads.root[some]\n",
        "    before[(np.cumsum(heads.num_nodes) - heads.num_nodes)[some]] = 0\n",
        _RULES,
    ),
    Fault(
        "a node may be its own parent",
        f"{DRAFT}/protocol/codec.py",
        "if (parents.view(np.uint32) >= ids.view(np.uint32)).any():",
        "if (parents.view(np.uint32) > ids.view(np.uint32)).any():",
        _RULES,
    ),
    Fault(
        "a sequence may be named twice",
        f"{DRAFT}/protocol/codec.py",
        "if len(seqs) > 1 and len(set(seqs.tolist())) < len(seqs):",
        "if False:",
        _RULES,
    ),
    Fault(
        "NaN is a log-probability",
        f"{DRAFT}/protocol/codec.py",
        "if not (unpack_floats(message.logprobs) <= 0.0).all():",
        "if (unpack_floats(message.logprobs) > 0.0).any():",
        _RULES,
    ),
    Fault(
        "columns may be of unlike length",
        f"{DRAFT}/protocol/codec.py",
        "if len(message.nodes) != 12 * size or len(message.logprobs) != 4 * size:",
        "if len(message.nodes) != 12 * size:",
        _RULES,
    ),
    Fault(
        "tokens of NODES may lie outside the vocabulary",
        f"{DRAFT}/protocol/codec.py",
        '    if not (tokens.view(np.uint32) < vocab_size).all():\n        raise FrameError("a token of NODES',
        '    if not (tokens >= 0).all():\n        raise FrameError("a token of NODES',
        _RULES,
    ),
    Fault(
        "keys are not checked",
        f"{DRAFT}/protocol/codec.py",
        '    _check_range("seq", [seq], MAX_ID)\n    _check_range("epoch", [epoch], MAX_EPOCH)\n',
        "    return\n",
        _RULES,
    ),
    Fault(
        "text that is no UTF-8 gets through as another error",
        f"{DRAFT}/protocol/codec.py",
        "except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:",
        "except (msgspec.ValidationError, RecursionError) as error:",
        f"{_MESSAGES}::test_what_is_no_frame_is_refused",
    ),
    Fault(
        "unknown fields are refused",
        f"{DRAFT}/protocol/messages.py",
        "frozen=True, omit_defaults=True)",
        "frozen=True, omit_defaults=True, forbid_unknown_fields=True)",
        f"{_MESSAGES}::test_fields_that_a_later_version_adds_are_ignored",
    ),
]

GROWER = [
    Fault(
        "the KV of a lost branch is kept",
        f"{_ORACLE}/grower.py",
        "        if move is not None:\n            self._move(session_id, move)\n",
        "",
        _FRAMES,
    ),
    Fault(
        "slots are moved as if blocks were consecutive",
        f"{DRAFT}/tree/select.py",
        "    block = tables.blocks[sequence, xp.at_most(position // shape.block, shape.blocks - 1)]\n",
        "    block = tables.blocks[sequence, 0 * position] + position // shape.block\n",
        f"{_GROWN}::test_children_are_right_where_no_two_blocks_are_neighbours",
    ),
    Fault(
        "a closed sequence keeps its tree slots",
        f"{_ORACLE}/grower.py",
        "            self._free_trees.append(self._trees.pop(session_id))\n",
        "            self._trees.pop(session_id)\n",
        _FRAMES,
    ),
    Fault(
        "a tree slot is given twice",
        f"{_ORACLE}/session.py",
        "[place for place in _all_places() if place not in taken]",
        "_all_places()",
        _FRAMES,
    ),
    Fault(
        "a closed sequence keeps its blocks",
        f"{_ORACLE}/grower.py",
        "            self._blocks.free(session_id)\n",
        "            pass\n",
        _FRAMES,
    ),
    Fault(
        "a tree takes more slots than it may",
        f"{_ORACLE}/grower.py",
        "room = min(count, -(-free // self._steps_left(session_id)))",
        "room = count",
        _FRAMES,
    ),
    Fault(
        "reading leaves the width as it is",
        f"{_ORACLE}/grower.py",
        "max(0, self._limits.width - sum(len(each.tokens) for each in going_on))",
        "self._limits.width",
        _FRAMES,
    ),
    Fault(
        "long prompts are read before short ones",
        f"{_ORACLE}/grower.py",
        "key=lambda item: len(item[1].tokens) - item[1].num_computed)",
        "key=lambda item: item[1].num_computed - len(item[1].tokens))",
        _FRAMES,
    ),
    Fault(
        "prompts are read at once",
        f"{DRAFT}/server/prefill.py",
        "count = min(most, budgets[tenant], lacking[row] - allotted.get(row, 0))",
        "count = lacking[row] - allotted.get(row, 0)",
        f"{_GROWN}::test_a_prompt_is_read_in_chunks",
    ),
    Fault(
        "the least valuable nodes are grown first",
        f"{_ORACLE}/grower.py",
        'best = np.argsort(-priorities, kind="stable")[:room]',
        'best = np.argsort(priorities, kind="stable")[:room]',
        _FRAMES,
    ),
]

_SDPA, _BATCH = "src/ssd/attention/sdpa.py", "src/ssd/attention/batch.py"
_BRANCHES = "tests/attention/test_branches.py"
ATTENTION = [
    Fault(
        "a row of a tree sees every node",
        _SDPA,
        "hidden = ~sees_nodes(batch.paths[span.first : span.last], span.num_nodes)",
        "hidden = torch.zeros(span.last - span.first, span.num_nodes, dtype=torch.bool)",
        f"{_BRANCHES}::test_no_row_sees_a_sibling_a_cousin_or_a_stranger",
    ),
    Fault(
        "paths are those of the batch's first rows",
        _SDPA,
        "~sees_nodes(batch.paths[span.first : span.last], span.num_nodes)",
        "~sees_nodes(batch.paths[: span.last - span.first], span.num_nodes)",
        f"{_BRANCHES}::test_rows_of_trees_equal_a_plain_mask",
    ),
    Fault(
        "the last token of the prefix is hidden from a tree",
        _SDPA,
        "            hidden = F.pad(hidden, (span.seen, 0))\n",
        "            hidden = F.pad(hidden, (span.seen, 0))\n            hidden[:, span.seen - 1] = True\n",
        f"{_BRANCHES}::test_every_ancestor_and_all_of_the_prefix_are_seen",
    ),
    Fault(
        "every tree uses the slots of the first",
        _SDPA,
        "tree_start = int(batch.tree_starts[span.sequence])",
        "tree_start = int(batch.tree_starts[0])",
        f"{_BRANCHES}::test_rows_of_trees_equal_a_plain_mask",
    ),
    Fault(
        "nodes are written in the order of rows",
        _BATCH,
        "np.array(branches.nodes) + branches.tree_start",
        "np.arange(len(branches.nodes)) + branches.tree_start",
        f"{_BRANCHES}::test_rows_of_trees_equal_a_plain_mask",
    ),
    Fault(
        "the second word of a path is the first",
        _BATCH,
        'np.frombuffer(words, np.dtype("<i8")).reshape(-1, _WORDS)',
        'np.frombuffer(words, np.dtype("<i8")).reshape(-1, _WORDS)[:, ::-1]',
        f"{_BRANCHES}::test_rows_of_trees_equal_a_plain_mask",
    ),
    Fault(
        "padding writes into a sequence's slot",
        _BATCH,
        "[[0], [0], [self._scratch_slot], [sequence], [1]]",
        "[[0], [0], [0], [sequence], [1]]",
        "tests/attention/test_sdpa.py::test_padding_rows_write_no_real_slot",
    ),
]

GUESSES = [
    Fault(
        "children are ranked without noise",
        f"{DRAFT}/tree/children.py",
        "perturbed = scores if rows[i].params.greedy else scores + g",
        "perturbed = scores",
        "tests/draft/tree/test_children.py::test_the_first_child_is_what_the_sampler_decides",
    ),
    Fault(
        "temperature is left out",
        f"{DRAFT}/tree/children.py",
        "temperature = 1.0 if row.params.greedy else row.params.temperature",
        "temperature = 1.0",
        "tests/draft/tree/test_children.py::test_the_first_child_is_what_the_sampler_decides",
    ),
    Fault(
        "truncation is left out",
        f"{DRAFT}/tree/children.py",
        "    kept = int((scores >= truncation_floor(wide, row.params)).sum())\n",
        "    kept = len(scores)\n",
        "tests/draft/tree/test_children.py::test_the_first_child_is_what_the_sampler_decides",
    ),
    Fault(
        "greedy guesses are truncated",
        f"{DRAFT}/tree/children.py",
        "    if row.params.greedy:\n        # The",
        "    if False:\n        # The",
        "tests/draft/tree/test_children.py::test_children_are_those_of_the_perturbed_scores_and_so_are_their_chances",
    ),
    Fault(
        "what is taken counts for the rank after it",
        "tests/draft/tree/oracle/calibration.py",
        "+= rank == observation.taken",
        "+= rank - 1 == observation.taken",
        "tests/draft/tree/oracle/test_calibration.py::test_converges_to_what_happens_rank_by_rank",
    ),
    Fault(
        "the model is not believed at first",
        "tests/draft/tree/oracle/calibration.py",
        "(self._num_taken[cell] + _TRUST * math.exp(each))",
        "(self._num_taken[cell] + _TRUST * 0.5)",
        "tests/draft/tree/oracle/test_calibration.py::test_believes_the_model_at_first",
    ),
    Fault(
        "a path may leave the likeliest one twice",
        "tests/draft/tree/oracle/growth.py",
        "elif left_at[parent] >= 0 or rank",
        "elif rank",
        _FRAMES,
    ),
]

_IN_FLIGHT = "tests/draft/server/test_in_flight.py"
_UPLOADS = (
    "tests/benchmarks/test_draft_step_cost.py::test_a_step_uploads_once_and_waits_only_for_the_one_before"
)
STEPS_IN_FLIGHT = [
    Fault(
        "memory is rewritten while the device copies it",
        f"{DRAFT}/server/device_steps.py",
        "inputs.upload(number % (self.depth + 1))",
        "inputs.upload(0)",
        _UPLOADS,
    ),
    Fault(
        "a second session is evicted while the first one's blocks are put to use",
        f"{DRAFT}/server/scheduler.py",
        "self.is_starved = lacks and not self._in_flight",
        "self.is_starved = lacks",
        f"{_IN_FLIGHT}::test_one_session_is_evicted_where_one_is_enough",
    ),
    Fault(
        "a row's new tenant pays for the prompt of the one before",
        f"{DRAFT}/server/tenants.py",
        "beside[row] += count * demand.is_same[row]",
        "beside[row] += count",
        f"{_IN_FLIGHT}::test_a_row_that_changed_hands_costs_its_new_tenant_nothing",
    ),
    Fault(
        "a step that was launched before blocks were taken over undoes it",
        f"{DRAFT}/server/scheduler.py",
        "np.maximum(ledger.num_computed, result.num_computed * is_known)",
        "np.where(is_known, result.num_computed, ledger.num_computed)",
        f"{_IN_FLIGHT}::test_a_text_that_took_over_anothers_blocks_goes_on_growing",
    ),
    Fault(
        "prompts are read without a pause while trees should grow",
        f"{DRAFT}/server/prefill.py",
        "            self._owed = took\n",
        "            self._owed = 0.0\n",
        "tests/draft/server/test_prefill.py::test_trees_keep_growing_while_long_prompts_open",
    ),
]

FAULTS = [*TREE, *SESSION, *MIRROR, *RUNS, *MESSAGES, *GROWER, *ATTENTION, *GUESSES, *STEPS_IN_FLIGHT]
