"""The configurations in which the forest is held against today's scheduler."""

from dataclasses import replace

from ssd.draft.protocol.messages import Sampling
from tests.draft.tree.pair import Setup
from tests.draft.tree.play import ENDS, Game

_GREEDY = Sampling(seed=0, end_ids=list(ENDS))
_WARM = Sampling(seed=0, temperature=0.8)
_CUT = (
    Sampling(seed=0, temperature=0.8, top_p=0.9, end_ids=list(ENDS)),
    Sampling(seed=0, temperature=1.0, top_k=5),
    Sampling(seed=0, temperature=1.3, min_p=0.05),
    Sampling(seed=0, temperature=0.7, top_k=40, top_p=0.8, min_p=0.01),
)
_EDITED = (
    Sampling(seed=0, repetition_penalty=1.2, end_ids=list(ENDS), min_tokens=20),
    Sampling(seed=0, temperature=0.9, presence_penalty=0.5, frequency_penalty=0.3, top_p=0.95),
    Sampling(seed=0, temperature=0.7, logit_bias=[(5, 3.0), (6, -4.0)], bad_word_ids=[[11, 12], [13]]),
    _GREEDY,
)
_MIXED = (_GREEDY, _WARM, *_CUT)

GAMES = (
    Game("greedy, one sequence", Setup(sequences=1, width=8), (_GREEDY,)),
    Game("greedy, few slots", Setup(sequences=5, width=24, slots=20, children=3), (_GREEDY,)),
    Game("two words of slots", Setup(sequences=1, width=64, lookahead=1), (_GREEDY, _WARM)),
    Game("coupled", Setup(sequences=3, width=12), (_WARM,)),
    Game("truncated", Setup(sequences=4, width=16), _CUT),
    Game("mixed, wide", Setup(sequences=6, width=48, slots=100, lookahead=4), _MIXED),
    Game("mixed, deep", Setup(sequences=2, width=32, children=2, lookahead=12), _MIXED),
    Game("fewer known tokens", Setup(sequences=3, width=16, known_vocab=200), _MIXED),
    Game("a restricted head", Setup(sequences=3, width=16, head=120, children=5), _MIXED),
    Game("runs", Setup(sequences=4, width=12, lookup=6, vocab=12), (_GREEDY, _WARM)),
    Game("runs, few slots", Setup(sequences=5, width=20, lookup=8, slots=24, vocab=20), _MIXED),
    Game("runs, geometric", Setup(sequences=2, width=8, lookup=5, vocab=12, policy="geometric"), (_GREEDY,)),
    Game("edited", Setup(sequences=4, width=12, lookup=4, vocab=40), _EDITED),
    Game("edited, a restricted head", Setup(sequences=3, width=10, vocab=80, head=40, children=5), _EDITED),
    Game("geometric", Setup(sequences=4, width=20, policy="geometric"), _MIXED),
    Game("long rounds", Setup(sequences=3, width=32, slots=40, steps=(4, 6, 8)), _MIXED),
    Game("geometric, many children", Setup(sequences=4, width=20, policy="geometric", children=6), _MIXED),
    # Short outcomes of few tokens: roots are often read behind paths that had left the likeliest one.
    Game(
        "short outcomes, geometric",
        Setup(sequences=2, width=8, lookup=5, vocab=9, children=3, lookahead=2, policy="geometric"),
        (_GREEDY,),
    ),
)


def on_tensors(game: Game) -> Game:
    return replace(game, name=f"{game.name}, on tensors", setup=replace(game.setup, on_tensors=True))
