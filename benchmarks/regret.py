"""What choosing a kind of draft costs against knowing the best one beforehand: tokens, in a simulation.

    python -m benchmarks.regret [--texts 400] [--rounds 100]

A text is to the liking of each kind in its own measure: the chance that a guess is right. A round accepts
guesses until the first wrong one, at most --lookahead. Whoever changes kinds has --reading rounds without
guesses, while the other reads the text. Nothing is simulated of times. Scenes:

    useless       one kind is of use, the other never
    apart         half of the texts suit one kind, half the other; all begin alike
    told apart    the same, and texts that suit one kind begin alike
    rare          one text in ten suits the other kind
    three         three kinds, each of which suits a third of the texts
    near          one kind is a little better, in every text
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.flags import parser
from ssd.draft.fitness import Fitness

FLAGS: dict[str, object] = {"texts": 400, "rounds": 100, "lookahead": 8, "reading": 2, "seed": 0}
FOUND_WITHIN = 20
"""Rounds."""
_NEARLY = 0.9
"""What is worth so much of the best is the best too."""

Chances = dict[str, float]
Scene = Callable[[int], tuple[Chances, int]]
"""Of a text: how often guesses of each kind are right, and how it begins."""


def _leaning(place: int, count: int, *, right: float = 0.85, wrong: float = 0.45) -> Chances:
    return {f"kind {each}": right if each == place else wrong for each in range(count)}


SCENES: dict[str, Scene] = {
    "useless": lambda number: ({"random": 0.0, "good": 0.7}, 0),
    "apart": lambda number: (_leaning(number * 7 // 3 % 2, 2), 0),
    "told apart": lambda number: (_leaning(number * 7 // 3 % 2, 2), number * 7 // 3 % 2),
    "rare": lambda number: (_leaning(int(number % 10 == 3), 2), 0),
    "three": lambda number: (_leaning(number * 7 // 2 % 3, 3), 0),
    "near": lambda number: ({"worse": 0.70, "better": 0.75}, 0),
}


@dataclass(frozen=True, slots=True)
class Result:
    regret: float
    """Tokens that were not accepted, as a share of those that the best kind of each text would have."""
    found: float
    """Share of texts that are with their best kind, or one nearly as good, after some rounds."""
    moves: float
    """A text."""


def tokens_a_round(chance: float, lookahead: int) -> float:
    return sum(chance**length for length in range(1, lookahead + 1))


def simulate(scene: Scene, options: Any) -> Result:
    chance, fitness = random.Random(options.seed), Fitness()
    num_lost = num_best = num_found = num_moves = 0.0
    for number in range(options.texts):
        likes, beginning = scene(number)
        worths = {kind: tokens_a_round(like, options.lookahead) for kind, like in likes.items()}
        homes = run_text(fitness, likes, [beginning], options, chance)
        num_best += max(worths.values()) * options.rounds
        num_lost += sum(max(worths.values()) - (worths[home] if home else 0.0) for home in homes)
        settled = next(home for home in reversed(homes[: FOUND_WITHIN + 1]) if home)
        num_found += worths[settled] > _NEARLY * max(worths.values())
        num_moves += homes.count("") / max(1, options.reading)
    return Result(num_lost / num_best, num_found / options.texts, num_moves / options.texts)


def run_text(
    fitness: Fitness, likes: Chances, tokens: Sequence[int], options: Any, chance: random.Random
) -> list[str]:
    """With which kind it was in each round; nobody, while one reads."""
    kinds = list(likes)
    taste = fitness.begin(tokens, kinds)
    kind, homes = fitness.best(kinds, taste), list[str]()
    while len(homes) < options.rounds:
        homes.append(kind)
        length = 0
        while length < options.lookahead and chance.random() < likes[kind]:
            length += 1
        fitness.note(taste, kind, length)
        others = [each for each in kinds if each != kind]
        if fitness.is_better_elsewhere(taste, kind, others):
            kind = fitness.best(others, taste)
            fitness.note_came(taste, kind)
            homes += [""] * options.reading
    fitness.end(taste)
    return homes[: options.rounds]


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    print("scene         regret   found in 20   moves a text")
    for name, scene in SCENES.items():
        found = simulate(scene, options)
        print(f"{name:<12}  {found.regret:6.3f}   {found.found:11.3f}   {found.moves:12.2f}")


if __name__ == "__main__":
    main()
