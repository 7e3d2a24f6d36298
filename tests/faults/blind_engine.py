"""Blind faults of the engine, its decoders and its process."""

from tests.faults.fault import BlindFault

BLIND = [
    BlindFault(
        "who was preempted counts its own blocks as found in the cache",
        "src/ssd/engine/scheduler.py",
        "        if not sequence.num_preemptions:\n            sequence.num_cached = num_cached\n",
        "        sequence.num_cached = num_cached\n",
        "cached_tokens of a request that gave way tells of tokens that nobody had computed before it.",
    ),
    BlindFault(
        "of several stop strings the first that was named wins, not the first in the text",
        "src/ssd/engine/stopping.py",
        "start, stop = min(matches, key=lambda match: match[0])",
        "start, stop = matches[0]",
        "A text goes on beyond an earlier stop string that came with the same token, and shows it.",
    ),
    BlindFault(
        "what is left of an unfinished character is dropped at the end",
        "src/ssd/engine/request.py",
        "        if stop is not None:\n            new_text += self._detokenizer.flush()\n",
        "",
        "A text that max_tokens cuts within a character is not the text of its tokens.",
    ),
    BlindFault(
        "every token is taken for the first",
        "src/ssd/engine/request.py",
        "        if self._first_token is None:\n            self._first_token = now",
        "        self._first_token = now",
        "The time to the first token is that to the last, and later tokens seem to take no time.",
    ),
    BlindFault(
        "whoever leaves after the first of n endings leaves the others running",
        "src/ssd/worker/engine_process.py",
        "                self.abort(request.request_id)\n",
        "                if request.params.n == 1:\n                    self.abort(request.request_id)\n",
        "A stream of n=2 that is closed early is computed to its end for nobody.",
    ),
    BlindFault(
        "min_tokens does not keep stop tokens away",
        "src/ssd/engine/request.py",
        "self.forbidden_ends = (*request.end_ids, *params.stop_token_ids)",
        "self.forbidden_ends = request.end_ids",
        "A stop token may be written before min_tokens, and the text goes on behind it.",
    ),
    BlindFault(
        "a bad word is only forbidden at the start of a text",
        "src/ssd/engine/prompts.py",
        'for spelling in (word, f" {word.lstrip()}")]',
        "for spelling in (word,)]",
        "A bad word comes out wherever a space stands before it.",
    ),
    BlindFault(
        "times of steps that read prompts teach the controller too",
        "src/ssd/decoding/ahead.py",
        "seconds = times.verify if times.is_generating else None",
        "seconds = times.verify",
        "After a long prompt verifications seem dear, and speculation stops paying for a while.",
    ),
    BlindFault(
        "a drawn token that the grammar forbids is left out before it is checked",
        "src/ssd/decoding/verification.py",
        'return drafted[: constraint.num_allowed(drafted) + (acceptance == "ratio")]',
        "return drafted[: constraint.num_allowed(drafted)]",
        "Under ratio acceptance with a grammar, tokens are not distributed as the target's.",
    ),
    BlindFault(
        "the steps of a draft in turns are kept for ever",
        "src/ssd/decoding/in_turns.py",
        "        self._draft_steps = [DraftStep(",
        "        self._draft_steps += [DraftStep(",
        "Memory grows with every step, and a trace shows each draft step many times.",
    ),
    BlindFault(
        "of joined increments only the last one's origins are kept",
        "src/ssd/worker/engine_process.py",
        "        origins=first.origins + second.origins,\n",
        "",
        "A slow reader gets fewer origins than tokens.",
    ),
    BlindFault(
        "the folder of the sockets is left behind",
        "src/ssd/worker/engine_process.py",
        "        self._addresses.remove()\n",
        "",
        "Each server that ends leaves a folder in /tmp.",
    ),
    BlindFault(
        "an engine's last words are lost",
        "src/ssd/worker/engine_process.py",
        'self._die(self._failure or f"its process {self.child.ending}")',
        'self._die(f"its process {self.child.ending}")',
        "Callers hear that a process ended with code 1, and not why.",
    ),
    BlindFault(
        "the pulse of a busy engine is not taken",
        "src/ssd/worker/loop.py",
        "                self.status = self._current_status()\n                self._deliver(self._core.step())",
        "                self._deliver(self._core.step())",
        "An engine that always has work is called stuck after some seconds, and its gauges stand still.",
    ),
]
