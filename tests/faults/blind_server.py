"""Blind faults of the server, the commands, and what measures and plans."""

from tests.faults.fault import BlindFault

BLIND = [
    BlindFault(
        "cached tokens are those of the first prompt",
        "src/ssd/server/answers.py",
        "cached_tokens=sum(each.num_cached_tokens for each in outputs)",
        "cached_tokens=outputs[0].num_cached_tokens",
        "usage of a request with several prompts tells of too few cached tokens, or too many.",
    ),
    BlindFault(
        "every path that anybody asks for becomes a label",
        "src/ssd/server/metrics.py",
        'path if path in _PATHS else "other"',
        "path",
        "A scanner fills memory and the page of metrics with paths that do not exist.",
    ),
    BlindFault(
        "whoever ends the server does not wait for those inside",
        "src/ssd/server/gate.py",
        "        self._is_empty.clear()\n",
        "",
        "SIGTERM cuts running answers off instead of giving them their seconds.",
    ),
    BlindFault(
        "a round of so many tokens is in the bucket above",
        "src/ssd/server/metrics.py",
        "for length, n in rounds.items() if length <= most)",
        "for length, n in rounds.items() if length < most)",
        "The histogram of drafted tokens a round is off by one: no round ever verified none.",
    ),
    BlindFault(
        "an answer that is calls in part loses the rest",
        "src/ssd/server/tools.py",
        "return list(calls) if calls and len(calls) == len(values) else [Content(self._held)]",
        "return list(calls) if calls else [Content(self._held)]",
        "Of an answer in JSON that mentions a tool, what is no call is swallowed.",
    ),
    BlindFault(
        "an answer keeps the white space that follows its reasoning",
        "src/ssd/server/pieces.py",
        "self._is_inside = self._has_begun = False",
        "self._is_inside = False",
        "Every answer of a thinking model begins with empty lines.",
    ),
    BlindFault(
        "a prompt of the model's whole length is let through",
        "src/ssd/server/serving.py",
        "        if num_prompt >= most:",
        "        if num_prompt > most:",
        "It is refused after the answer has begun, without the code clients look for.",
    ),
    BlindFault(
        "a server without a draft is degraded",
        "src/ssd/server/app.py",
        "beat.is_draft_ready is False",
        "not beat.is_draft_ready",
        "/ready says that the draft is away where there never was one.",
    ),
    BlindFault(
        "an echo with no alternatives has no log-probabilities",
        "src/ssd/server/prompts.py",
        "if body.echo and body.logprobs is not None:",
        "if body.echo and body.logprobs:",
        "With echo and logprobs=0 the lists of tokens and log-probabilities are of unlike length.",
    ),
    BlindFault(
        "a draft is chosen for a lucky prompt",
        "src/ssd/tuning/confirm.py",
        "        return ratio.low > 1\n",
        "        return ratio.value > 1\n",
        "`ssd tune` names a draft where its gain may be noise.",
    ),
    BlindFault(
        "a batch misses as seldom as one sequence",
        "benchmarks/validation/published.py",
        "(1 - hits**batch) * miss_seconds",
        "(1 - hits) * miss_seconds",
        "The check of the plan promises too much of the published SSD for batches.",
    ),
    BlindFault(
        "a file of settings beats --speculative-config",
        "src/ssd/cli/config_file.py",
        "context.default_map = {**defaults, **(context.default_map or {})}",
        "context.default_map = {**(context.default_map or {}), **defaults}",
        "The draft named on the command line is not the one that is used.",
    ),
    BlindFault(
        "figures of the answer before stay on the screen",
        "src/ssd/cli/chat_remote.py",
        "        self.usage = AnswerStats()\n        with self._errors():",
        "        with self._errors():",
        "A chat with a server that sends no usage this time shows the last answer's count and speed.",
    ),
]
