"""Faults of trees under verification: walks, masks, what nodes see, where keys go, what the cache learns."""

from tests.faults.fault import Fault

_BRANCHING = "src/ssd/draft/client/proposals.py"
_VERIFICATION = "src/ssd/decoding/verification.py"
_TREE_SLOTS = "src/ssd/decoding/tree_slots.py"
_SDPA = "src/ssd/attention/sdpa.py"
_WALK = "tests/draft/client/test_proposals.py::test_a_walk_goes_as_far_as_the_decided_tokens_do"
_EVERY = "tests/oracle/test_coupled.py::test_every_speculation_at_every_place"
_ORACLE = "tests/oracle/test_coupled.py::test_adversarial_schedules_over_noise_tables"
_KEYS = "tests/decoding/test_tree_rows.py::test_keys_of_the_accepted_path_are_those_of_plain_decoding"
_MASKS = "tests/decoding/test_tree_rows.py::test_every_node_has_the_mask_of_its_path"
_BITS = "tests/attention/test_branches.py::test_deterministic_nodes_have_the_bits_of_texts"
_DRAFTS = "tests/engine/test_scheduler_drafts.py"

FAULTS = [
    Fault(
        "in a tree a walk goes to a cousin that has the token",
        _BRANCHING,
        "if parent == end and tokens[place] == decided[end + 1]:",
        "if parent <= end and tokens[place] == decided[end + 1]:",
        _WALK,
    ),
    Fault(
        "in a tree a walk takes the first child, whatever was decided",
        _BRANCHING,
        "if parent == end and tokens[place] == decided[end + 1]:",
        "if parent == end:",
        _WALK,
    ),
    Fault(
        "in a tree a walk looks at what was decided after the node itself",
        _BRANCHING,
        "if parent == end and tokens[place] == decided[end + 1]:",
        "if parent == end and tokens[place] == decided[place]:",
        _WALK,
    ),
    Fault(
        "nodes of a tree draw noise by their row",
        _VERIFICATION,
        "    return [0, *depths_of(row.parents, row.num_drafted)]\n",
        "    return range(row.num_drafted + 1)\n",
        _ORACLE,
    ),
    Fault(
        "nodes of a tree with penalties draw noise by their row",
        _VERIFICATION,
        "position=known.position + len(path)",
        "position=known.position + paths.index(path)",
        _ORACLE,
    ),
    Fault(
        "penalties at a node of a tree see all nodes before it",
        _VERIFICATION,
        "path_to(row.parents, node)] for node in range(-1, row.num_drafted)]",
        "path_to(None, node)] for node in range(-1, row.num_drafted)]",
        "tests/decoding/test_tree_rows.py::test_positions_and_histories_follow_paths",
    ),
    Fault(
        "of a tree only the first path has masks",
        _VERIFICATION,
        "    for leaf in leaves_of(parents) or [-1]:\n",
        "    for leaf in leaves_of(parents)[:1] or [-1]:\n",
        _MASKS,
    ),
    Fault(
        "masks of a tree are one node late",
        _VERIFICATION,
        "found[node + 1] = mask",
        "found[max(node, 0)] = mask",
        _MASKS,
    ),
    Fault(
        "of a tree what the grammar forbids is verified",
        _VERIFICATION,
        "        for node in path[: constraint.num_allowed([drafted[node] for node in path])]:\n",
        "        for node in path:\n",
        _MASKS,
    ),
    Fault(
        "the accepted path of a tree is one node late",
        _VERIFICATION,
        "tuple([place - 1 for place in places[1:]])",
        "tuple([place - 1 for place in places[:-1]])",
        _KEYS,
    ),
    Fault(
        "nodes of a tree see every node before them",
        _TREE_SLOTS,
        "sum(1 << each for each in path_to(parents, node))",
        "(2 << node) - 1",
        _EVERY,
    ),
    Fault(
        "nodes of a tree do not see their parent",
        _TREE_SLOTS,
        "sum(1 << each for each in path_to(parents, node))",
        "(1 << node) | sum(1 << each for each in path_to(parents, node)[:-2])",
        _EVERY,
    ),
    Fault(
        "nodes of a tree do not see the last known token",
        _TREE_SLOTS,
        "        num_prefix=num_prefix,\n",
        "        num_prefix=num_prefix - 1,\n",
        _EVERY,
    ),
    Fault(
        "nodes of a tree stand one position too far",
        _TREE_SLOTS,
        "num_prefix + depth - 1 for depth",
        "num_prefix + depth for depth",
        _KEYS,
    ),
    Fault(
        "keys of the first nodes of a tree are moved, not those of the path",
        _TREE_SLOTS,
        "sources += [start + node for node in each.branch]",
        "sources += [start + place for place, _node in enumerate(each.branch)]",
        _KEYS,
    ),
    Fault(
        "keys of a tree's path are moved one position too far",
        _TREE_SLOTS,
        "self._slot(row, first + place)",
        "self._slot(row, first + place + 1)",
        _KEYS,
    ),
    Fault(
        "keys of a tree's path stay where they are",
        _TREE_SLOTS,
        "        if sources and self.move is not None:\n",
        "        if not sources and self.move is not None:\n",
        _ORACLE,
    ),
    Fault(
        "keys of a tree's path are taken from another tree's slots",
        _TREE_SLOTS,
        "start, first = next(starts), row.start",
        "start, first = self.starts[0], row.start",
        _KEYS,
    ),
    Fault(
        "a block of the path is the last one's neighbour, not the text's",
        _TREE_SLOTS,
        "row.blocks[position // self.block_size] * self.block_size",
        "(row.blocks[0] + position // self.block_size) * self.block_size",
        _KEYS,
    ),
    Fault(
        "deterministic trees are merged where the prefix ends",
        _SDPA,
        "return self._runs(batch, span) if self._deterministic else [self._tree(batch, span)]",
        "return [self._tree(batch, span)]",
        _BITS,
    ),
    Fault(
        "a deterministic run of a tree goes on with a cousin",
        _SDPA,
        "if i == 0 or path[:-1] != paths[i - 1]]",
        "if i == 0 or len(path[:-1]) != len(paths[i - 1])]",
        _BITS,
    ),
    Fault(
        "a deterministic run of a tree sees one key less",
        _SDPA,
        "num_before = span.seen + len(paths[first]) - 1",
        "num_before = span.seen + len(paths[first]) - 2",
        _BITS,
    ),
    Fault(
        "a tree is deeper than the text may be",
        _BRANCHING,
        "place < count and each <= depth for",
        "place < count for",
        f"{_DRAFTS}::test_a_tree_is_cut_by_depth_where_the_text_ends_and_by_nodes_where_the_budget_does",
    ),
    Fault(
        "a tree takes a block for every node",
        "src/ssd/engine/schedule.py",
        "        return max(depths_of(self.parents, self.num_drafted), default=0)\n",
        "        return self.num_drafted\n",
        f"{_DRAFTS}::test_a_tree_takes_blocks_for_its_longest_path_only",
    ),
    Fault(
        "of a tree any node may follow any other in an outcome",
        _BRANCHING,
        "if parent in ends and tokens[place] == wanted",
        "if tokens[place] == wanted",
        f"{_DRAFTS}::test_an_outcome_that_is_no_path_is_refused",
    ),
    Fault(
        "every node of a tree counts as computed for the prefix cache",
        "src/ssd/engine/scheduler.py",
        "num_computed = row.start + row.num_known + max(0, len(new_tokens) - 1)",
        "num_computed = row.start + row.num_known + (row.num_drafted if row.parents else len(new_tokens) - 1)",
        f"{_DRAFTS}::test_of_a_tree_only_the_accepted_path_enters_the_cache",
    ),
    Fault(
        "there are more trees than tree slots",
        "src/ssd/engine/core.py",
        "            num_trees -= parents is not None\n",
        "",
        "tests/e2e/test_trees.py::test_loose",
    ),
]
