"""Blind faults of what computes: sampling, attention, KV cache, models, runtime."""

from tests.faults.fault import BlindFault

BLIND = [
    BlindFault(
        "drafted tokens count as counted",
        "src/ssd/sampling/tally.py",
        "self._num_counted = output.num_decided",
        "self._num_counted = len(output)",
        "With penalties, speculation changes tokens: what was drafted and decided is not counted any more.",
    ),
    BlindFault(
        "what stands in the prompt only counts as written once",
        "src/ssd/sampling/processors.py",
        "np.concatenate([counts, np.zeros_like(others)])",
        "np.concatenate([counts, np.ones_like(others)])",
        "Beside a repetition penalty, frequency and presence penalties hit the prompt's tokens.",
    ),
    BlindFault(
        "a bad word that begins in the prompt may be completed",
        "src/ssd/sampling/processors.py",
        "return [*prompt[-lacking:], *tail] if lacking else tail",
        "return tail",
        "A bad word of several tokens comes out where the prompt ends with its beginning.",
    ),
    BlindFault(
        "log-probabilities are those of the processed logits",
        "src/ssd/sampling/sampler.py",
        "return Drawn(logits, rows, tokens, void)",
        "return Drawn(scores, rows, tokens, void)",
        "With a bias or a penalty, log-probabilities are not the model's.",
    ),
    BlindFault(
        "acceptance and residual use the same random number",
        "src/ssd/sampling/ratio.py",
        "return chooser.choose(residual(p, proposal.distribution), Stream.RESIDUAL, position)",
        "return chooser.choose(residual(p, proposal.distribution), Stream.ACCEPTANCE, position)",
        "After a rejection, tokens of high ids come too often: texts are not distributed as the target's.",
    ),
    BlindFault(
        "the end is forbidden for one token too long",
        "src/ssd/sampling/processors.py",
        "len(row.output) < row.params.min_tokens",
        "len(row.output) <= row.params.min_tokens",
        "With min_tokens=5 no text ends after five tokens and the end token.",
    ),
    BlindFault(
        "values that are no numbers are stored",
        "src/ssd/attention/sdpa.py",
        "            keys, values = (\n"
        "                torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in (keys, values)\n"
        "            )\n",
        "            keys = torch.nan_to_num(keys, nan=0.0, posinf=0.0, neginf=0.0)\n",
        "In deterministic mode, one sequence that overflows makes NaN of its neighbours.",
    ),
    BlindFault(
        "where blocks lie apart, keys are read for values",
        "src/ssd/attention/sdpa.py",
        "for pool in (self.pool.keys, self.pool.values)",
        "for pool in (self.pool.keys, self.pool.keys)",
        "Once the cache is fragmented, a request's tokens depend on where its blocks are.",
    ),
    BlindFault(
        "a block's size is that of its keys alone",
        "src/ssd/kvcache/pool.py",
        "return 2 * self.num_layers",
        "return self.num_layers",
        "The KV cache takes twice the memory that kv_cache_bytes allows.",
    ),
    BlindFault(
        "of a freed text the head is evicted before the tail",
        "src/ssd/kvcache/block_manager.py",
        "for block in reversed(blocks):",
        "for block in blocks:",
        "When blocks get scarce, the next prompt with the same start finds nothing though most is there.",
    ),
    BlindFault(
        "a found block that is idle is counted as free too",
        "src/ssd/kvcache/block_manager.py",
        "num_found_in_use = sum(self._num_references[block] > 0 for block in found.blocks)",
        "num_found_in_use = len(found.blocks)",
        "A prompt that is partly cached is let in without room, and the engine fails.",
    ),
    BlindFault(
        "of several end tokens only the first ends a text",
        "src/ssd/models/checkpoint.py",
        "ids += declared if isinstance(declared, list) else [declared]",
        "ids += declared[:1] if isinstance(declared, list) else [declared]",
        "An instruct model whose turns end with its second end token never stops.",
    ),
    BlindFault(
        "a draft's head has its special tokens on top",
        "src/ssd/models/head_tokens.py",
        "islice(ordinary, count - len(special))",
        "islice(ordinary, count)",
        "The head is larger than was asked for.",
    ),
    BlindFault(
        "every rank adds the bias",
        "src/ssd/models/parallel.py",
        "bias if shard.rank == 0 else None",
        "bias",
        "A model with biases computes something else on two ranks than on one.",
    ),
    BlindFault(
        "a sliding window counts only where it is switched on by name",
        "src/ssd/models/config.py",
        'getattr(config, "use_sliding_window", True)',
        'getattr(config, "use_sliding_window", False)',
        "A model that always has a window is served without it: texts longer than that are wrong.",
    ),
    BlindFault(
        "a start that fails leaves torch with fewer threads",
        "src/ssd/runtime/cores.py",
        "        torch.set_num_threads(num_threads)\n        raise",
        "        raise",
        "After a refused start everything in this process computes on the cores of the one that failed.",
    ),
    BlindFault(
        "the last block of the longest text is not reckoned with",
        "src/ssd/runtime/room.py",
        "useful = config.max_num_seqs * -(-longest // config.block_size)",
        "useful = config.max_num_seqs * (longest // config.block_size)",
        "A max_model_len that is no multiple of the block size does not fit, whatever memory there is.",
    ),
    BlindFault(
        "nodes of a tree are computed at the positions of their slots",
        "src/ssd/attention/batch.py",
        "    columns[1, first:last] = branches.positions\n",
        "    columns[1, first:last] = branches.nodes\n",
        "Alternatives of a draft are computed for the wrong place, and hardly ever right.",
    ),
]
