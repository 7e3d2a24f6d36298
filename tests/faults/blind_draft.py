"""Blind faults of the draft, and of vLLM with one."""

from tests.faults.fault import BlindFault

BLIND = [
    BlindFault(
        "a draft that comes back is not offered what the one before declined",
        "src/ssd/draft/client/router.py",
        "            session.declined.pop(replica, None)\n",
        "            pass\n",
        "A sequence that a draft had no room for goes on without speculation after a restart, to its end.",
    ),
    BlindFault(
        "the first token beyond the draft's vocabulary is told to it",
        "src/ssd/draft/client/router.py",
        "if largest(self.tokens) >= replica.vocab_size",
        "if largest(self.tokens) > replica.vocab_size",
        "A text with that token makes the draft refuse the frame and forget the engine: all lose speculation.",
    ),
    BlindFault(
        "a draft's word about an earlier request of a row counts for its successor",
        "src/ssd/draft/client/router.py",
        "session.replica is not replica or self._mirrors.epoch[seq] != epoch:",
        "session.replica is not replica:",
        "A late CLOSE ends the speculation of the request that has the row now.",
    ),
    BlindFault(
        "a second replacement leaves the first one's draft behind",
        "src/ssd/draft/client/pool.py",
        "                self._end_trial()\n                self._trial = sources\n",
        "                self._trial = sources\n",
        "A draft process that was to take over, and was replaced itself, runs on and holds its memory.",
    ),
    BlindFault(
        "spans of draft steps are told again and again",
        "src/ssd/draft/server/server.py",
        "        self._last_spans = []\n",
        "",
        "STATS grow with every step until they are refused, and the line is lost.",
    ),
    BlindFault(
        "every message to a silent draft begins its silence anew",
        "src/ssd/draft/client/connection.py",
        "            self._link.send(frame)\n",
        "            self._link.send(frame)\n            self._last_heard = self._clock()\n",
        "A draft that hangs is never given up as long as requests run.",
    ),
    BlindFault(
        "a token's chance is its own, not that of the path to it",
        "src/ssd/draft/client/mirrors.py",
        "chances.append(math.exp(value))",
        "chances.append(math.exp(view.logprobs[place]))",
        "Far tokens look as sure as near ones, and more are verified than pay.",
    ),
    BlindFault(
        "what was seen fades, what was taken does not",
        "src/ssd/draft/tree/apply.py",
        "counts *= xp.where(counts[:1] > MEMORY, known.half, known.one)",
        "counts[0] *= xp.where(counts[0] > MEMORY, known.half, known.one)",
        "After some hundred tokens every guess of a kind is held to be certain.",
    ),
    BlindFault(
        "who comes while the draft is full is told not to come back",
        "src/ssd/draft/server/server.py",
        "return [Close(message.seq, message.epoch, reason, may_return=True), self._stats(peer)]",
        "return [Close(message.seq, message.epoch, reason), self._stats(peer)]",
        "A long request that came at a bad moment goes without speculation though there is room again.",
    ),
    BlindFault(
        "a request id that comes again draws with its predecessor's seed",
        "src/ssd/integrations/vllm/batch_rows.py",
        "                self._ids = []  # The seeds may have changed although the ids have not.\n",
        "",
        "The second request under an id gets the tokens of another seed than it brought.",
    ),
    BlindFault(
        "the draft takes max_tokens for the length of prompt and output",
        "src/ssd/integrations/vllm/requests.py",
        "longest = max_model_len if most is None else len(new.prompt_token_ids) + most",
        "longest = max_model_len if most is None else most",
        "Nothing is drafted for a request whose prompt is longer than what it may generate.",
    ),
    BlindFault(
        "padding counts as drafted",
        "src/ssd/integrations/vllm/sessions.py",
        "min(step.num_drafted.get(request_id, 0), live.num_proposed)",
        "step.num_drafted.get(request_id, 0)",
        "Metrics tell of more drafted tokens than there were, and of no padding.",
    ),
    BlindFault(
        "the draft hangs on the last rank of the last stage",
        "src/ssd/integrations/vllm/fitting.py",
        "return int(parallel.world_size) - per_stage",
        "return int(parallel.world_size) - 1",
        "With two ranks side by side vLLM reads tokens of another rank than the one that has the draft.",
    ),
]
