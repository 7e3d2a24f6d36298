"""Faults of kernels, each in what the interpreter runs."""

from tests.faults.fault import Fault

_SRC = "src/ssd/kernels"
_SCENES = "tests/kernels/test_scenes.py"
_SCENE = f"{_SCENES}::test_a_kernel_equals_its_oracle"
_TEXTS = f"{_SCENE}[8/2 heads of 64, float32, 0+5 37+1 300+9]"
_TREES = f"{_SCENE}[4/2 heads of 64, float32, 40+12 over 30 nodes 9+3 70+5 over 0 nodes]"
_SPLIT = f"{_SCENE}[2/1 heads of 128, float16, 511+1 514+4]"
_DRAWN = f"{_SCENE}[5 rows of 2500]"
_CUT = f"{_SCENE}[4 rows of 2049, truncated]"
_HEAD = f"{_SCENE}[3 rows of 1100, truncated, of a head]"
_CHOICE = "tests/kernels/test_choice.py"
_FIXED = "tests/kernels/test_invariance.py::test_a_row_alone_has_the_bits_of_the_row_in_company"
_RUN = "tests/kernels/test_noise.py::test_a_run_of_tokens"

_TRUST = "tests/kernels/test_trust.py"
_TREES_TEST = "tests/kernels/test_trees.py"
_STEPS = f"{_TREES_TEST}::test_each_step_does_what_torch_does"
_RUNS, _CROWDED = f"{_STEPS}[3 trees of 12, 4 rows of 3, runs of 3]", f"{_STEPS}[3 trees of 80, 5 rows of 2]"

FAULTS = [
    Fault(
        "a kernel that failed is used all the same",
        f"{_SRC}/trust.py",
        "return can_launch(device) and (device.type, kernel) not in _failed",
        "return can_launch(device)",
        f"{_TRUST}::test_whoever_computes_then_takes_torchs",
    ),
    Fault(
        "a kernel that cannot be launched ends the start",
        "src/ssd/runtime/kernel_checks.py",
        "    except Exception as error:",
        "    except ArithmeticError as error:",
        f"{_TRUST}::test_what_differs_or_raises_is_replaced_and_the_log_says_so",
    ),
    Fault(
        "a row sees the key behind its own",
        f"{_SRC}/attend.py",
        "place[None, :] < num_seen[:, None]",
        "place[None, :] <= num_seen[:, None]",
        _TEXTS,
    ),
    Fault(
        "keys of one page stand for all",
        f"{_SRC}/attend.py",
        "tables + sequence * table_stride + place // page",
        "tables + sequence * table_stride + start // page",
        _TEXTS,
    ),
    Fault(
        "a tile has rows of two sequences",
        f"{_SRC}/attend.py",
        "tl.where(here != before, rows, 0)",
        "tl.where(here < before, rows, 0)",
        _SPLIT,
    ),
    Fault(
        "an older sum of a softmax does not fade",
        f"{_SRC}/attend.py",
        "total = total * fading + tl.sum(weights, 1)",
        "total = total + tl.sum(weights, 1)",
        _TEXTS,
    ),
    Fault(
        "heads of a group take turns by rows",
        f"{_SRC}/attend.py",
        "kv_head * group + places % group",
        "kv_head + places % group",
        _TEXTS,
    ),
    Fault(
        "nodes of the second word have bits of the first",
        f"{_SRC}/attend.py",
        "paths + row * (num_nodes // 64) + corner // 64",
        "paths + row * (num_nodes // 64)",
        _TREES,
    ),
    Fault(
        "a node sees its siblings in the tile",
        f"{_SRC}/attend.py",
        "_absorb(query, keys, values, on_path, top",
        "_absorb(query, keys, values, is_node[None, :] & is_row[:, None], top",
        _TREES,
    ),
    Fault(
        "every split attends to the tree",
        f"{_SRC}/attend.py",
        "if split == num_splits - 1:",
        "if split >= 0:",
        f"{_SCENE}[2/1 heads of 64, float32, 700+6 over 120 nodes 3+1]",
    ),
    Fault(
        "the key on the border belongs to two splits",
        f"{_SRC}/attend.py",
        "tl.minimum(begin + share, num_keys)",
        "tl.minimum(begin + share + 1, num_keys)",
        _SPLIT,
    ),
    Fault(
        "all parts weigh the same",
        f"{_SRC}/attend.py",
        "tl.load(masses + split * num_places + place) - base\n",
        "base - base\n",
        _SPLIT,
    ),
    Fault(
        "parts of no mass are read",
        f"{_SRC}/attend.py",
        "mask=weight > 0.0, other=0.0",
        "mask=weight >= 0.0, other=0.0",
        "tests/kernels/test_invariance.py::test_what_no_part_wrote_is_never_read",
    ),
    Fault(
        "fixed splits follow the keys of the tile",
        f"{_SRC}/attend.py",
        "if split_keys == 0:",
        "if split_keys >= 0:",
        f"{_FIXED}[dtype0]",
    ),
    Fault(
        "values are written where keys are meant",
        f"{_SRC}/rope.py",
        "tl.store(pool_values + spot + whole",
        "tl.store(pool_keys + spot + whole",
        f"{_SCENES}::test_a_write_touches_its_slots_alone",
    ),
    Fault(
        "a row is rotated by the angles of another",
        f"{_SRC}/rope.py",
        "tl.load(sines + row * half + dims)",
        "tl.load(sines + row // 2 * half + dims)",
        _TEXTS,
    ),
    Fault(
        "halves of a head are rotated the other way",
        f"{_SRC}/rope.py",
        "second * cos + first * sin",
        "second * cos - first * sin",
        _TEXTS,
    ),
    Fault(
        "a move leaves the values behind",
        f"{_SRC}/kv.py",
        "value = tl.load(pool_values + start + source * head_dim",
        "value = tl.load(pool_values + start + destination * head_dim",
        _TREES,
    ),
    Fault(
        "nine rounds in a kernel",
        f"{_SRC}/noise.py",
        "for _ in tl.static_range(10):",
        "for _ in tl.static_range(9):",
        _RUN,
    ),
    Fault(
        "words of a block are handed out in another order",
        f"{_SRC}/noise.py",
        "tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))",
        "tl.interleave(tl.interleave(w0, w1), tl.interleave(w2, w3))",
        _RUN,
    ),
    Fault(
        "half of the words serve all single tokens",
        f"{_SRC}/noise.py",
        "lane = tokens % 4",
        "lane = tokens % 2",
        "tests/kernels/test_noise.py::test_any_tokens",
    ),
    Fault(
        "the highest of equal tokens wins",
        f"{_SRC}/scores.py",
        "column = tl.min(tl.where((scores == best) & (columns < num_columns), columns, 2147483647), 0)",
        "column = tl.max(tl.where((scores == best) & (columns < num_columns), columns, -1), 0)",
        f"{_SCENES}::test_of_equal_scores_the_lowest_token_wins_and_0_where_there_is_none",
    ),
    Fault(
        "noise saves what truncation drops",
        f"{_SRC}/scores.py",
        "kept = scores >= tl.load(floors + row)",
        "kept = scores + noise >= tl.load(floors + row)",
        _CUT,
    ),
    Fault(
        "noise counts columns of a head, not tokens",
        f"{_SRC}/scores.py",
        "tl.load(head_tokens + columns, mask=is_column, other=0)",
        "columns",
        _HEAD,
    ),
    Fault(
        "a row takes the token of the first block",
        f"{_SRC}/decide.py",
        "tl.where(is_place & (scores == best), found, 2147483647)",
        "tl.where(places == 0, found, 2147483647)",
        _DRAWN,
    ),
    Fault(
        "a child comes twice",
        f"{_SRC}/vocabulary.py",
        '        tl.store(raws + row * count + rank, tl.where(is_child, best - whole, float("-inf")))\n        scores = tl.where(columns == column',
        '        tl.store(raws + row * count + rank, tl.where(is_child, best - whole, float("-inf")))\n        scores = tl.where(columns < 0',
        _DRAWN,
    ),
    Fault(
        "shares are of one block alone",
        f"{_SRC}/vocabulary.py",
        "whole = log_sum(mass)",
        "whole = tl.max(mass, 0)",
        _DRAWN,
    ),
    Fault(
        "values that are no numbers are written as they are",
        f"{_SRC}/rope.py",
        'tl.where(tl.abs(wide) < float("inf"), wide, 0.0)',
        "wide",
        f"{_SCENES}::test_what_a_refused_token_left_reaches_no_other_row_of_its_tile[nan-FusedBackend]",
    ),
    Fault(
        "torch's attention keeps what is no number",
        "src/ssd/attention/sdpa.py",
        "torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each",
        "each for each",
        "tests/attention/test_sdpa.py::test_what_a_refused_token_left_reaches_no_row_before_it[nan-one mask]",
    ),
    Fault(
        "tiles of kernels follow the tables that there are",
        "src/ssd/attention/fused.py",
        "len(owners) + 1 if owners else NOT_KNOWN",
        "len(tables)",
        f"{_CHOICE}::test_tiles_follow_the_sequences_that_a_batch_names",
    ),
    Fault(
        "children of kernels have the noise of their parent's place",
        "src/ssd/draft/tree/gpu.py",
        "Draws(tables.seed[sequence], rows.position + 1, heats, is_murmur=is_murmur)",
        "Draws(tables.seed[sequence], rows.position, heats, is_murmur=is_murmur)",
        "tests/kernels/test_children.py::test_they_are_those_of_the_torch_form[False]",
    ),
    Fault(
        "a tree's kernels are used untried",
        "src/ssd/draft/server/kernel_checks.py",
        "leave_failing_kernels_to_torch(device, check_steps(device, (scene_of(shape),)))",
        "pass",
        f"{_TREES_TEST}::test_a_service_tries_its_own_shapes_and_leaves_what_fails",
    ),
    Fault(
        "a node below a wrong one lies on the path",
        f"{_SRC}/tree_outcomes.py",
        "on_path = is_right & (astray == 0)",
        "on_path = is_right",
        _CROWDED,
    ),
    Fault(
        "what lies beside a new root stays",
        f"{_SRC}/tree_outcomes.py",
        "kept = is_below & is_hit &",
        "kept = is_hit &",
        _RUNS,
    ),
    Fault(
        "values count from the old root",
        f"{_SRC}/tree_outcomes.py",
        "child_value - base, mask=is_node",
        "child_value, mask=is_node",
        _RUNS,
    ),
    Fault(
        "nodes of the second word keep ancestors that are gone",
        f"{_SRC}/tree_outcomes.py",
        "high & bits_of(kept, slot, 1, slots)",
        "high",
        _CROWDED,
    ),
    Fault(
        "nothing is learnt of what did not come",
        f"{_SRC}/tree_outcomes.py",
        "tl.atomic_add(trees.counts + cells, ones, mask=is_guess)",
        "tl.atomic_add(trees.counts + cells, ones, mask=is_guess & (tokens == decided[:, None]))",
        _RUNS,
    ),
    Fault(
        "a row's own children shift their numbers",
        f"{_SRC}/tree_families.py",
        "first_id = next_id + tl.sum(tl.where(every < row, numbers, 0), 0)",
        "first_id = next_id + tl.sum(tl.where(every <= row, numbers, 0), 0)",
        _RUNS,
    ),
    Fault(
        "a run that has lapsed goes on",
        f"{_SRC}/tree_families.py",
        "holds = holds & (tl.sum(is_alike.to(tl.int32), 0) > 0)",
        "holds = tl.sum(is_alike.to(tl.int32), 0) > 0",
        _RUNS,
    ),
    Fault(
        "a run's node may be chosen again",
        f"{_SRC}/tree_families.py",
        "is_open = is_open & (rank != tl.load(found.taken + row))",
        "is_open = is_open & (rank >= 0)",
        _RUNS,
    ),
    Fault(
        "ends of texts are grown",
        f"{_SRC}/tree_families.py",
        "tl.store(found.is_open + spots, exists & ~is_end, mask=is_rank)",
        "tl.store(found.is_open + spots, exists, mask=is_rank)",
        _RUNS,
    ),
    Fault(
        "tokens that the engine does not know are told",
        f"{_SRC}/tree_families.py",
        " & (tokens < tl.load(trees.vocab + sequence))",
        "",
        _RUNS,
    ),
    Fault(
        "rows of a tree share a slot",
        f"{_SRC}/tree_rows.py",
        "tl.minimum(row - start, num_free - 1)",
        "tl.minimum(row - row, num_free - 1)",
        _RUNS,
    ),
    Fault(
        "a tree takes more nodes than it has room for",
        f"{_SRC}/tree_rows.py",
        "best = tl.where(place < (room + steps - 1) // steps, -tl.topk(-key, places), nothing)",
        "best = -tl.topk(-key, places)",
        f"{_TREES_TEST}::test_room_is_for_all_the_steps_of_a_round",
    ),
    Fault(
        "a tenant's rows all count as its first",
        f"{_SRC}/tree_turns.py",
        "used + mine.to(tl.float64) / weight",
        "used + 1.0 / weight",
        f"{_TREES_TEST}::test_rows_go_round_among_tenants_and_new_texts_are_beside_them",
    ),
    Fault(
        "new texts are read within the width",
        f"{_SRC}/tree_turns.py",
        "wide = width + tl.sum(tl.load(demand.beside + number, mask=is_sequence, other=0), 0)",
        "wide = width",
        f"{_TREES_TEST}::test_rows_go_round_among_tenants_and_new_texts_are_beside_them",
    ),
    Fault(
        "a text is read from its end",
        f"{_SRC}/tree_rows.py",
        "due = (behind * sizes.ring + column - read_first) << 32",
        "due = (behind * sizes.ring - column - read_first) << 32",
        _RUNS,
    ),
    Fault(
        "a node does not see its parent's key",
        f"{_SRC}/tree_rows.py",
        "high = tl.load(trees.ancestors + sizes.words + spot) | bit_of(family, 1, slots)",
        "high = tl.load(trees.ancestors + sizes.words + spot)",
        _CROWDED,
    ),
]
