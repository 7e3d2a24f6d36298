"""A draft in the engine's own process: its paths, what could stand in a token's stead, and grammars."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.decoding.drafter import Drafter, DraftLimits
from ssd.decoding.rows import DraftContext
from ssd.draft.client.proposals import path_to
from ssd.engine.grammar import GrammarCompiler
from ssd.kvcache.block_manager import BlockManager
from ssd.sampling import Grammar, History, SamplingParams, SamplingRow
from ssd.sampling.constraint import GrammarState
from tests.row_runner import RowRunner
from tests.tiny import tiny_tokenizer

VOCAB, LOOKAHEAD = 512, 6


class FavoursTheNext(RowRunner):
    """After each token the next one is likely, and the two behind that are less so."""

    def __init__(self) -> None:
        self.num_forwards = self.num_tokens = 0

    def forward(self, rows: Sequence[SequenceInput]) -> Tensor:
        self.num_forwards += 1
        self.num_tokens += sum(len(row.tokens) for row in rows)
        tokens = [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]]
        logits = torch.full((len(tokens), VOCAB), -20.0)
        for place, chance in enumerate((0.6, 0.3, 0.09), 1):
            following = torch.tensor([(token + place) % VOCAB for token in tokens])
            logits[torch.arange(len(tokens)), following] = torch.tensor(chance).log()
        return logits


def drafter() -> tuple[Drafter, FavoursTheNext]:
    model = FavoursTheNext()
    limits = DraftLimits(LOOKAHEAD, 256, 512, VOCAB)
    return Drafter(model, BlockManager(64, 16), limits), model


def context(*text: int, temperature: float = 0.0) -> DraftContext:
    params = SamplingParams(temperature=temperature)
    return DraftContext(0, SamplingRow(params, 1, len(text), text, History(list(text), len(text))))


def state_of(text: str) -> Mapping[int, GrammarState]:
    """At the start of a text that must be this one."""
    compiler = GrammarCompiler(tiny_tokenizer(), (1,), VOCAB)
    state = compiler.constraints(Grammar("regex", text), 1)[0].state()
    assert state is not None
    return {0: state}


def test_a_tree_is_the_path_and_what_could_stand_in_each_tokens_stead() -> None:
    made, model = drafter()
    [path] = made.propose_trees([context(3, 4)], [2])
    assert path.parents is not None
    nodes = {
        tuple(path.tokens[node] for node in path_to(path.parents, place)): chance
        for place, chance in enumerate(path.chances)
    }
    assert nodes == pytest.approx(
        {(5,): 0.6, (5, 6): 0.36, (6,): 0.3, (5, 7): 0.18, (7,): 0.09, (5, 8): 0.054}
        | {path: chance for path, chance in nodes.items() if chance < 1e-6},
        rel=0.05,
    )
    assert list(path.chances) == sorted(path.chances, reverse=True)
    assert model.num_forwards == 2
    assert tuple(path.chain().tokens) == drafter()[0].propose([context(3, 4)], [2])[0].tokens == (5, 6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_must_follow_costs_no_forward(temperature: float) -> None:
    tokens = tiny_tokenizer()("abcdefghij").input_ids
    made, model = drafter()
    [found] = made.propose([context(3, 4, temperature=temperature)], None, state_of("abcdefghij"))
    assert list(found.tokens) == tokens[:LOOKAHEAD]
    assert model.num_forwards == 0


def test_guesses_keep_to_the_grammar() -> None:
    """Digits are hardly likely by the draft, but nothing else may follow; what is forced is read at once."""
    made, model = drafter()
    states = state_of("[0-9]abcd[0-9][0-9]")
    [found] = made.propose([context(3, 4)], None, states)
    text = tiny_tokenizer().decode(found.tokens)
    assert text[0].isdigit()
    assert text[1:5] == "abcd"[: len(text) - 1]
    assert model.num_forwards < len(found.tokens)
    state = states[0]
    for token in found.tokens:
        assert state.allows(token)
        state = state.after(token)


def test_a_draft_without_any_allowed_token_gives_way() -> None:
    limits = DraftLimits(LOOKAHEAD, 256, 512, vocab_size=4)
    made = Drafter(FavoursTheNext(), BlockManager(64, 16), limits)
    [found] = made.propose([context(3, 2)], None, state_of("[0-9]abcd"))
    assert found.tokens == ()
