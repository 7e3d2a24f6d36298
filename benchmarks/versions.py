"""SSD before a change against SSD after it: the same texts, each version in a venv of its own, in turns.

    python -m benchmarks.versions --before OLD/bin/python --after NEW/bin/python \\
        --target MODEL --draft SMALL --prompts humaneval.jsonl \\
        [--batch 1 8] [--turns 8] [--max-tokens 32] [--params '{"temperature": 0.7, "seed": 1}']

Both stay loaded, and one of them generates at a time, so what the machine does meets both. A turn takes the
next texts, greedily unless `--params` says otherwise; the order within a turn is drawn. Printed: tokens a
second, the ratio after / before with its interval, and whether all tokens were the same. This file is its own
worker (`--serve`), which knows of a version only what it exports.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

FLAGS = {
    "before": str, "after": str, "target": str, "draft": str, "prompts": Path,
    "batch": [1, 8], "turns": 8, "max-tokens": 32, "params": "{}", "core": 0, "draft-core": 1,
}  # fmt: skip


class Version:
    """A version in its own process, which answers each batch of texts with its tokens and their seconds."""

    def __init__(self, python: str, options: argparse.Namespace) -> None:
        outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        numbers = map(str, (options.core, options.draft_core, max(options.batch)))
        words = [python, __file__, "--serve", options.target, options.draft, *numbers]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=outside, cwd="/"
        )
        self.tokens: list[list[int]] = []

    def rate(self, texts: list[str], params: dict[str, Any]) -> float:
        """Tokens of all texts a second, prompts included in the time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"texts": texts, "params": params}) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        self.tokens += answer["tokens"]
        return sum(map(len, answer["tokens"])) / float(answer["seconds"])

    def close(self) -> None:
        self._process.communicate()


def measure(versions: dict[str, Version], texts: list[str], batch: int, options: argparse.Namespace) -> None:
    from benchmarks.in_turns import take_turns
    from ssd.bench.statistics import paired_ratio

    params = {"temperature": 0, "max_tokens": options.max_tokens, **json.loads(options.params)}

    def turn(name: str) -> float:
        first = turns[name] * batch
        turns[name] += 1
        chosen = [texts[index % len(texts)] for index in range(first, first + batch)]
        return versions[name].rate(chosen, params)

    turns = dict.fromkeys(versions, 0)
    rates = take_turns({name: partial(turn, name) for name in versions}, options.turns)
    for name, found in rates.items():
        print(f"batch {batch}  {name:6} {statistics.median(found):7.2f} tok/s")
    print(f"batch {batch}  after / before: {paired_ratio(rates['after'], rates['before'])}", flush=True)


def compare(options: argparse.Namespace) -> None:
    texts = [json.loads(line)["text"] for line in options.prompts.read_text().splitlines()]
    versions = {name: Version(getattr(options, name), options) for name in ("before", "after")}
    for batch in options.batch:
        measure(versions, texts, batch, options)
    same = versions["before"].tokens == versions["after"].tokens
    print(f"{len(versions['after'].tokens)} texts, {'all tokens the same' if same else 'NOT ALL THE SAME'}")
    for version in versions.values():
        version.close()


def serve(target: str, draft: str, core: int, draft_core: int, max_num_seqs: int) -> None:
    from ssd import LLM, SamplingParams

    settings: dict[str, Any] = {"mode": "ssd", "draft": {"model": draft, "cores": (draft_core,)}}
    settings |= {"device": "cpu", "cores": (core,), "max_num_seqs": max_num_seqs, "max_model_len": 2048}
    with LLM(target, show_progress=False, **settings) as llm:
        for line in sys.stdin:
            asked = json.loads(line)
            params = SamplingParams(**asked["params"], ignore_eos=True)
            started = time.perf_counter()
            outputs = llm.generate(asked["texts"], params, use_tqdm=False)
            seconds = time.perf_counter() - started
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]))
    else:
        from benchmarks.flags import parser

        compare(parser(__doc__, FLAGS).parse_args())
