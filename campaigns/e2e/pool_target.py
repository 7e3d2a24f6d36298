"""One target of a pool: our engine with drafts elsewhere, that decodes the same prompts for ever.

    python -m campaigns.e2e.pool_target MODEL ADDRESSES --pause 0.05

First it decodes each prompt without a draft: what comes later must be the same. Ten times a second it says
how it goes: requests that ended and those that ended wrong, rounds, hits, rounds that a draft had foretold,
rightly or not, and how many drafts there are.
"""

import argparse
import itertools
import threading
import time
from typing import Any

import torch

from ssd import LLM, SamplingParams
from tests.network.programs import say

_SAYS_EVERY = 0.1
_TASKS = (
    *("add two numbers", "reverse a string", "count the vowels of a text", "sort a list of pairs by value"),
    *("read a file line by line", "find the largest prime below n", "merge two sorted lists", "parse a date"),
    *("compute a moving average", "flatten a nested list", "check whether a word is a palindrome"),
    *("convert Celsius to Fahrenheit", "remove duplicates and keep the order", "split a list into chunks"),
    *("find the longest common prefix", "transpose a matrix", "count words of a text", "validate an address"),
    *("compute the greatest common divisor", "generate the Fibonacci numbers below n"),
)
PROMPTS = tuple(f'"""Functions to {task}."""\n\n\ndef ' for task in _TASKS)


class Paced:
    """A runner that leaves the others a turn: so many targets share two cores."""

    def __init__(self, runner: Any, seconds: float) -> None:
        self._runner, self._seconds = runner, seconds

    def launch(self, *what: Any) -> Any:
        time.sleep(self._seconds)
        return self._runner.launch(*what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def counts(llm: LLM, num_ended: int, num_wrong: int) -> dict[str, Any]:
    stats = llm.stats
    draft = stats.draft
    assert draft is not None
    return {
        "at": time.monotonic(),
        "ended": num_ended,
        "wrong": num_wrong,
        "rounds": stats.speculation.rounds,
        "hits": stats.speculation.hits,
        "foretold": stats.speculation.hits + stats.speculation.unknown,
        "ready": draft.num_ready,
        "moved": draft.num_moved,
        "losses": draft.num_losses,
        "session": draft.num_sequences,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("addresses")
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="of the prompts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    prompts = [PROMPTS[(options.first + place) % len(PROMPTS)] for place in range(4)]
    params = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    common: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False}
    with LLM(options.model, **common) as alone:
        expected = [each.outputs[0].token_ids for each in alone.generate(prompts, params, use_tqdm=False)]
    llm = LLM(options.model, mode="ssd", draft={"model": options.addresses, "timeout": 5.0}, **common)
    decoder: Any = llm._engine.core.decoder
    decoder._runner = Paced(decoder._runner, options.pause)
    num_ended = num_wrong = 0

    def speak() -> None:
        while True:
            say(counts(llm, num_ended, num_wrong))
            time.sleep(_SAYS_EVERY)

    threading.Thread(target=speak, daemon=True).start()
    for place in itertools.count():
        asked = [(place + further) % len(prompts) for further in range(options.batch)]
        found = llm.generate([prompts[each] for each in asked], params, use_tqdm=False)
        tokens = [each.outputs[0].token_ids for each in found]
        num_wrong += sum(each != expected[which] for each, which in zip(tokens, asked, strict=True))
        num_ended += len(asked)


if __name__ == "__main__":
    main()
