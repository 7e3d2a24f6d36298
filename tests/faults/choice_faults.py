"""Faults of what is proposed: trees, grammars, what must follow. They cost guesses; a text they must not."""

from tests.faults.fault import Fault

DRAFT = "src/ssd/draft"

FAULTS = [
    Fault(
        "a forbidden child is proposed",
        f"{DRAFT}/client/proposals.py",
        "[each for each in known if grammar.allows(each[1])]",
        "[each for each in known]",
        "tests/draft/client/test_grammar_paths.py::test_the_likeliest_that_is_allowed_goes_on_where_the_likeliest_of_all_is_forbidden",
    ),
    Fault(
        "what is likely counts as certain",
        f"{DRAFT}/client/proposals.py",
        "min(_ALMOST, chance * share)",
        "min(1.0, chance * share)",
        "tests/draft/client/test_grammar_paths.py::test_only_what_must_follow_is_certain",
    ),
    Fault(
        "a node goes by its own chance alone",
        f"{DRAFT}/client/proposals.py",
        "(waiting, (-chance * share, next(number)",
        "(waiting, (-share, next(number)",
        "tests/draft/client/test_proposals.py::test_no_tree_of_the_same_size_is_likelier",
    ),
    Fault(
        "what was foretold is added again",
        f"{DRAFT}/client/router.py",
        "            self.tokens.extend(new)\n",
        "            self.tokens.extend(tokens)\n",
        "tests/draft/client/test_forced_tokens.py::test_what_was_decided_is_added_once",
    ),
    Fault(
        "what was foretold wrongly stays",
        f"{DRAFT}/client/router.py",
        "        del self.tokens[len(self.tokens) - len(self.forced) :]\n",
        "",
        "tests/draft/client/test_forced_tokens.py::test_what_was_decided_is_added_once",
    ),
    Fault(
        "trees cost nothing beside their rows",
        f"{DRAFT}/client/controller.py",
        "self.jump + self.branching * has_trees if",
        "self.jump if",
        "tests/draft/client/test_controller.py::test_where_trees_cost_more_than_they_yield_chains_are_taken",
    ),
    Fault(
        "a branch hangs on another token's place",
        "src/ssd/decoding/drafter.py",
        "at[place - 1] if place else -1",
        "at[place] if place else -1",
        "tests/decoding/test_drafter.py::test_a_tree_is_the_path_and_what_could_stand_in_each_tokens_stead",
    ),
    Fault(
        "guesses in turns forget the grammar",
        "src/ssd/decoding/drafter.py",
        "allowed = None if self.state is None else self.state.mask()",
        "allowed = None",
        "tests/decoding/test_drafter.py::test_guesses_keep_to_the_grammar",
    ),
]
