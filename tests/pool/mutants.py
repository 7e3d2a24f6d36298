"""Changes to the pool's code that a good simulator notices: data for a test that applies them.

`old` occurs once in the file `path`; with `new` in its place the pool is broken as `breaks` says.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    breaks: str
    path: str
    old: str
    new: str
    faults: tuple[str, ...] = ()
    """The kinds of faults under which the change shows; all kinds if empty."""


_CLIENT, _SERVER, _PROTOCOL = (f"src/ssd/draft/{side}" for side in ("client", "server", "protocol"))

MUTANTS = (
    Mutant(
        "what was lost with a draft stays without one",
        f"{_CLIENT}/router.py",
        "            self._part(session)\n        self.open_all()\n",
        "            self._part(session)\n",
    ),
    Mutant(
        "a draft's sequences are not counted down when it is lost",
        f"{_CLIENT}/router.py",
        "            session.replica.num_own_sequences -= 1\n",
        "",
    ),
    Mutant(
        "refusals of drafts that are gone are kept",
        f"{_CLIENT}/router.py",
        "            session.declined.pop(replica, None)\n",
        "            pass\n",
        ("flood of sequences", "killed draft"),
    ),
    Mutant(
        "what a draft closed is not opened elsewhere",
        f"{_CLIENT}/router.py",
        "may_return=message.may_return)\n        self.open(session)\n",
        "may_return=message.may_return)\n",
        ("flood of sequences", "lying draft"),
    ),
    Mutant(
        "an epoch is used twice",
        f"{_CLIENT}/router.py",
        "if session.is_offered else self._next_epoch()",
        "if session.is_offered else self._next_epoch() // 2 + 1",
    ),
    Mutant(
        "a moved sequence is not closed where it was",
        f"{_CLIENT}/router.py",
        "            session.replica.post(Close(session.seq, int(self._mirrors.epoch[session.seq])))\n",
        "",
    ),
    Mutant(
        "addresses that DNS does not name at once are new drafts later",
        f"{_CLIENT}/connection.py",
        "self._sources.get(each) or self._source_at(each)",
        "self._source_at(each)",
        ("other answers",),
    ),
    Mutant(
        "an outcome that repeats is applied again",
        f"{_SERVER}/session.py",
        "if n <= known or ledger.is_out_of_sync[row]:",
        "if n < known or ledger.is_out_of_sync[row]:",
        ("lying target",),
    ),
    Mutant(
        "a missing outcome is not noticed",
        f"{_SERVER}/session.py",
        "        if n > known + 1:\n",
        "        if False:\n",
        ("lost frame",),
    ),
    Mutant(
        "a draft that misses an outcome does not ask for the text",
        f"{_SERVER}/server.py",
        "            return [Resync(session.seq, session.epoch)]\n",
        "            return []\n",
        ("lost frame",),
    ),
    Mutant(
        "growth asks for no credit",
        f"{_SERVER}/session.py",
        "self.is_open & has_credit & ~self.is_out_of_sync",
        "self.is_open & ~self.is_out_of_sync",
        ("frozen target", "delay"),
    ),
    Mutant(
        "a target that is gone keeps its sessions",
        f"{_SERVER}/server.py",
        "        for session in known.sessions.values():\n            self._scheduler.close(session)\n",
        "",
    ),
    Mutant(
        "idle targets are told nothing, so nobody notices that they are gone",
        f"{_SERVER}/frames.py",
        "            found.append(name)\n        return found\n",
        "            break\n        return found\n",
    ),
    Mutant(
        "a sequence that is opened again keeps its first session",
        f"{_SERVER}/server.py",
        "        self._close(peer, known.seq, known.epoch)\n        return True\n",
        "        return True\n",
    ),
    Mutant(
        "frames of a peer that was forgotten stay in the queue",
        f"{_SERVER}/server.py",
        "            self._intake.discard(peer)\n",
        "            pass\n",
        ("flood of frames",),
    ),
    Mutant(
        "weights do not count",
        f"{_SERVER}/tenants.py",
        "self.weight_of(name), self._debts.pop",
        "1.0, self._debts.pop",
        ("flood of sequences",),
    ),
    Mutant(
        "prompts are free",
        f"{_SERVER}/tenants.py",
        "beside[row] += count",
        "beside[row] += 0",
        ("flood of sequences",),
    ),
    Mutant(
        "nobody is told when he is evicted",
        f"{_SERVER}/server.py",
        "self._send(peer, [Close(session.seq, session.epoch, reason, may_return=True)])\n",
        "pass\n",
        ("flood of sequences",),
    ),
    Mutant(
        "a tenant's totals outlive its peers",
        f"{_SERVER}/tenants.py",
        "        self._num_had.pop(name, None)\n",
        "        pass\n",
    ),
    Mutant(
        "a closed session's row is not free again",
        f"{_SERVER}/scheduler.py",
        "        insort(self._free_rows, row, key=neg)\n",
        "",
    ),
    Mutant(
        "a closed session keeps its blocks",
        f"{_SERVER}/kv.py",
        "        self._blocks.free(session.row)\n",
        "        pass\n",
    ),
    Mutant(
        "frames are numbered as those of the row's last session",
        f"{_SERVER}/frames.py",
        "    ledger.sent[rows] += 1\n",
        "    ledger.sent[rows] += full\n",
    ),
    Mutant(
        "nodes that a whole tree has already are sent again",
        f"{_SERVER}/scheduler.py",
        "        others = np.arange(self._shape.sequences + 1) != session.row\n",
        "        others = np.ones(self._shape.sequences + 1, np.bool_)\n",
        ("lost frame",),
    ),
    Mutant(
        "a draft is told the tokens of another draft's sequences",
        f"{_CLIENT}/client.py",
        "tokens[mine.repeat(counts)]",
        "tokens[: int(counts[mine].sum())]",
    ),
    Mutant(
        "a gap in the frames is ignored",
        f"{_CLIENT}/mirrors.py",
        "gap = due & ((heads.number > self.num_frames[seqs]) | self",
        "gap = due & ((heads.number < 0) | self",
        ("lost frame",),
    ),
    Mutant(
        "after a miss the draft's new root is not understood",
        f"{_CLIENT}/mirrors.py",
        "nearer = (heads.full > 0) | (heads.length > self.root_length[heads.seq])",
        "nearer = (heads.full > 0) | (self.root[heads.seq] == UNNAMED)",
    ),
    Mutant(
        "children may come in two parts",
        f"{_CLIENT}/mirrors.py",
        "for keys, whose in ((owned << 32 | parents, owned), (groups",
        "for keys, whose in ((groups << 32 | tokens, owners), (groups",
        ("lying draft",),
    ),
    Mutant(
        "a mirror that is out of sync asks for nothing",
        f"{_CLIENT}/client.py",
        "            session.replica.post(Resync(seq, int(self._mirrors.epoch[seq])))\n",
        "            pass\n",
        ("lost frame",),
    ),
    Mutant(
        "forced tokens that were decided otherwise stay in the text",
        f"{_CLIENT}/router.py",
        "        del self.tokens[len(self.tokens) - len(self.forced) :]\n",
        "",
    ),
    Mutant(
        "an ended session's id is lost",
        f"{_CLIENT}/router.py",
        "        self._free_seqs.append(session.seq)\n",
        "",
    ),
    Mutant(
        "an ended request is remembered",
        f"{_CLIENT}/speculator.py",
        "        self._knowledge.pop(request_id, None)\n",
        "",
    ),
    Mutant(
        "a lost connection is never made again",
        f"{_CLIENT}/replica.py",
        "return self._clock() >= self._not_before",
        "return not self._not_before",
    ),
    Mutant(
        "a silent draft is never given up",
        f"{_CLIENT}/connection.py",
        "if self._clock() - self._last_heard > longest:",
        "if False:",
    ),
    Mutant(
        "a draft that greets again is believed to know everything",
        f"{_CLIENT}/connection.py",
        '            self.lose("the draft has forgotten this engine")\n',
        "            pass\n",
        ("drained draft", "lying target"),
    ),
    Mutant(
        "an id of NODES may be its parent's",
        f"{_PROTOCOL}/codec.py",
        "if (parents.view(np.uint32) >= ids.view(np.uint32)).any():",
        "if (parents.view(np.uint32) > ids.view(np.uint32)).any():",
        ("lying draft",),
    ),
    Mutant(
        "tokens of an outcome are not checked",
        f"{_SERVER}/server.py",
        "        faults = faults_of_outcome(message, peer.vocab_size)\n",
        "        faults = dict[int, str]()\n",
        ("lying target",),
    ),
)
