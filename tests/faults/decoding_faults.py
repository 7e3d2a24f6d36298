"""Faults of acceptance, sampling and text: what would change a token or a distribution."""

from tests.faults.fault import Fault

_DEFINITION = "tests/decoding/test_verification.py::test_any_schedule_of_drafts_gives_the_defined_tokens"

FAULTS = [
    Fault(
        "wrong residual",
        "src/ssd/sampling/ratio.py",
        "np.maximum(p[q.token_ids] - q.probabilities, 0.0)",
        "p[q.token_ids]",
        "tests/oracle/test_ratio.py::test_larger_games",
    ),
    Fault(
        "q not the sampled one",
        "src/ssd/decoding/drafter.py",
        "    return propose(q, ratio.chooser_of(row.seed), row.position)\n",
        "    honest = draft_distribution(logits, row)\n"
        "    drawn = propose(q, ratio.chooser_of(row.seed), row.position)\n"
        "    return Proposal(drawn.token, honest)\n",
        "tests/oracle/test_ratio.py::test_whole_generations_with_the_drafter",
    ),
    Fault(
        "greedy acceptance at T > 0",
        "src/ssd/sampling/sampler.py",
        "    is_greedy = all(row.params.greedy for row in rows)\n",
        "    is_greedy = True\n",
        _DEFINITION,
    ),
    Fault(
        "off-by-one bonus",
        "src/ssd/draft/client/proposals.py",
        "        return list(range(count))\n",
        "        return list(range(max(0, count - 1)))\n",
        "tests/decoding/test_verification.py::test_acceptance_ends_at_the_first_token_not_foretold",
    ),
    Fault(
        "a rejected token is kept",
        "src/ssd/draft/client/proposals.py",
        "and decided[count] == tokens[count]",
        "and decided[count] >= 0",
        _DEFINITION,
    ),
    Fault(
        "a row with penalties counts as drawn alone",
        "src/ssd/sampling/sampler.py",
        "row.params.logprobs is None and not needs_edits(row)",
        "row.params.logprobs is None",
        _DEFINITION,
    ),
    Fault(
        "what is settled is lost when its request is aborted",
        "src/ssd/engine/core.py",
        "            if results:\n",
        "            if False:\n",
        "tests/engine/test_async_runner.py::test_what_is_settled_is_told_when_a_request_is_aborted",
    ),
    Fault(
        "text that ends a sequence waits",
        "src/ssd/engine/request.py",
        "self._reads_at_once = bool(params.stop)",
        "self._reads_at_once = False",
        "tests/engine/test_stopping.py::test_stop_string_is_cut_and_counted_at_its_own_token_in_any_burst",
    ),
    Fault(
        "who is aborted under way takes the step with him",
        "src/ssd/engine/core.py",
        "generation = self._generations.get(sequence.seq_id)",
        "generation = self._generations[sequence.seq_id]",
        "tests/engine/test_async_runner.py::test_what_is_settled_is_told_when_a_request_is_aborted",
    ),
    Fault(
        "what was settled is lost with a step that fails",
        "src/ssd/engine/core.py",
        "        schedule = self._scheduler.schedule(self._prompt_budget)\n",
        "        schedule = self._scheduler.schedule(self._prompt_budget)\n        self._untold = []\n",
        "tests/engine/test_async_runner.py::test_what_was_told_when_a_step_failed_comes_with_the_next",
    ),
    Fault(
        "rows that hit wait for rows that miss",
        "src/ssd/draft/client/speculator.py",
        "has_waited = not num_ready and (waited := self._wait(request_ids)) > 0",
        "has_waited = (waited := self._wait(request_ids)) > 0",
        "tests/draft/client/test_speculator.py::test_rows_that_hit_do_not_wait_for_rows_that_miss",
    ),
    Fault(
        "noise keyed by row",
        "src/ssd/sampling/sampler.py",
        "[row.position for row in rows]",
        "list(range(len(rows)))",
        "tests/sampling/test_sampler.py::test_a_row_alone_equals_the_row_in_company_to_the_bit",
    ),
    Fault(
        "penalties do not see drafted tokens",
        "src/ssd/decoding/verification.py",
        "output=known.output.followed_by(path)",
        "output=known.output",
        _DEFINITION,
    ),
    Fault(
        "stop string missed inside a burst",
        "src/ssd/engine/request.py",
        "            if self.stop is not None:\n                break\n",
        "            if self.stop is not None and token is tokens[-1]:\n                break\n",
        "tests/engine/test_stopping.py::test_stop_string_is_cut_and_counted_at_its_own_token_in_any_burst",
    ),
    Fault(
        "a drawn guess is looked at before it is checked",
        "src/ssd/draft/client/speculator.py",
        "return path.chances if path.drawn is None else [1.0, *path.chances[:-1]][: len(path.chances)]",
        "return path.chances",
        "tests/draft/client/test_speculator.py::test_a_drawn_token_is_cut_by_its_parents_chance",
    ),
    Fault(
        "a grammar that failed allows the end",
        "src/ssd/engine/grammar_compile.py",
        "        bits.fill(0)\n",
        "        pass\n",
        "tests/engine/test_grammar.py::test_a_matcher_that_fails_allows_nothing",
    ),
    Fault(
        "min_tokens holds a complete text open",
        "src/ssd/sampling/processors.py",
        "torch.where(is_over[indices // scores.shape[1]], values, -math.inf)",
        "-math.inf",
        "tests/engine/test_grammar.py::test_a_complete_text_ends_before_min_tokens",
    ),
]
