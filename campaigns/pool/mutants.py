"""Breaks the pool's code in one place, and looks how soon the simulator notices; fault after fault.

    python -m campaigns.pool.mutants [--only WORD] [--seeds 200] [--record docs/records/pool_mutants.jsonl]

Each mutant is a piece of source replaced while its module is imported, in a process of its own: no file
changes. It is found when a seed ends with a violation. Ends with 1 if one is not found.
"""

import argparse
import importlib
import importlib.util
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from campaigns.record import Record
from tests.faults.fault import Change
from tests.faults.run import faulty

_CLIENT, _SERVER, _PROTOCOL = (f"src/ssd/draft/{side}" for side in ("client", "server", "protocol"))

MUTANTS = [
    # Routing.
    Change(
        "what was lost with a draft stays without one",
        f"{_CLIENT}/router.py",
        "            self._part(session)\n        self.open_all()\n",
        "            self._part(session)\n",
    ),
    Change(
        "a draft's sequences are not counted down when it is lost",
        f"{_CLIENT}/router.py",
        "            session.replica.num_own_sequences -= 1\n",
        "",
    ),
    Change(
        "refusals of drafts that are gone are kept",
        f"{_CLIENT}/router.py",
        "            session.declined.pop(replica, None)\n",
        "            pass\n",
    ),
    Change(
        "what a draft closed is not opened elsewhere",
        f"{_CLIENT}/router.py",
        "may_return=message.may_return)\n        self.open(session)\n",
        "may_return=message.may_return)\n",
    ),
    Change(
        "an epoch is used twice",
        f"{_CLIENT}/router.py",
        "if session.is_offered else self._next_epoch()",
        "if session.is_offered else self._next_epoch() // 2 + 1",
    ),
    Change(
        "a moved sequence is not closed where it was",
        f"{_CLIENT}/router.py",
        "            session.replica.post(Close(session.seq, int(self._mirrors.epoch[session.seq])))\n",
        "",
    ),
    Change(
        "addresses that DNS does not name at once are new drafts later",
        f"{_CLIENT}/connection.py",
        "self._sources.get(each) or self._source_at(each)",
        "self._source_at(each)",
    ),
    # The service.
    Change(
        "an outcome that repeats is applied again",
        f"{_SERVER}/session.py",
        "if n <= known or ledger.is_out_of_sync[row]:",
        "if n < known or ledger.is_out_of_sync[row]:",
    ),
    Change(
        "a missing outcome is not noticed",
        f"{_SERVER}/session.py",
        "        if n > known + 1:\n",
        "        if False:\n",
    ),
    Change(
        "a draft that misses an outcome does not ask for the text",
        f"{_SERVER}/server.py",
        "            return [Resync(session.seq, session.epoch)]\n",
        "            return []\n",
    ),
    Change(
        "growth asks for no credit",
        f"{_SERVER}/session.py",
        "self.is_open & has_credit & ~self.is_out_of_sync",
        "self.is_open & ~self.is_out_of_sync",
    ),
    Change(
        "a target that is gone keeps its sessions",
        f"{_SERVER}/server.py",
        "        for session in known.sessions.values():\n            self._scheduler.close(session)\n",
        "",
    ),
    Change(
        "idle targets are told nothing, so nobody notices that they are gone",
        f"{_SERVER}/frames.py",
        "            found.append(name)\n        return found\n",
        "            break\n        return found\n",
    ),
    Change(
        "a sequence that is opened again keeps its first session",
        f"{_SERVER}/server.py",
        "        self._close(peer, known.seq, known.epoch)\n        return True\n",
        "        return True\n",
    ),
    Change(
        "frames of a peer that was forgotten stay in the queue",
        f"{_SERVER}/server.py",
        "            self._intake.discard(peer)\n",
        "            pass\n",
    ),
    Change(
        "weights do not count",
        f"{_SERVER}/tenants.py",
        "self.weight_of(name), self._debts.pop",
        "1.0, self._debts.pop",
    ),
    Change(
        "prompts are free",
        f"{_SERVER}/tenants.py",
        "beside[row] += count",
        "beside[row] += 0",
    ),
    Change(
        "nobody is told when he is evicted",
        f"{_SERVER}/server.py",
        "self._send(peer, [Close(session.seq, session.epoch, reason, may_return=True)])\n",
        "pass\n",
    ),
    Change(
        "a tenant's totals outlive its peers",
        f"{_SERVER}/tenants.py",
        "        self._num_had.pop(name, None)\n",
        "        pass\n",
    ),
    Change(
        "a closed session's row is not free again",
        f"{_SERVER}/scheduler.py",
        "        insort(self._free_rows, row, key=neg)\n",
        "",
    ),
    Change(
        "a closed session keeps its blocks",
        f"{_SERVER}/kv.py",
        "        self._blocks.free(session.row)\n",
        "        pass\n",
    ),
    Change(
        "frames are numbered as those of the row's last session",
        f"{_SERVER}/frames.py",
        "    ledger.sent[rows] += 1\n",
        "    ledger.sent[rows] += full\n",
    ),
    Change(
        "nodes that a whole tree has already are sent again",
        f"{_SERVER}/scheduler.py",
        "        others = np.arange(self._shape.sequences + 1) != session.row\n",
        "        others = np.ones(self._shape.sequences + 1, np.bool_)\n",
    ),
    # The client.
    Change(
        "a draft is told the tokens of another draft's sequences",
        f"{_CLIENT}/client.py",
        "tokens[mine.repeat(counts)]",
        "tokens[: int(counts[mine].sum())]",
    ),
    Change(
        "a gap in the frames is ignored",
        f"{_CLIENT}/mirrors.py",
        "gap = due & ((heads.number > self.num_frames[seqs]) | self",
        "gap = due & ((heads.number < 0) | self",
    ),
    Change(
        "after a miss the draft's new root is not understood",
        f"{_CLIENT}/mirrors.py",
        "nearer = (heads.full > 0) | (heads.length > self.root_length[heads.seq])",
        "nearer = (heads.full > 0) | (self.root[heads.seq] == UNNAMED)",
    ),
    Change(
        "children may come in two parts",
        f"{_CLIENT}/mirrors.py",
        "for keys, whose in ((owned << 32 | parents, owned), (groups",
        "for keys, whose in ((groups << 32 | tokens, owners), (groups",
    ),
    Change(
        "a mirror that is out of sync asks for nothing",
        f"{_CLIENT}/client.py",
        "            session.replica.post(Resync(seq, int(self._mirrors.epoch[seq])))\n",
        "            pass\n",
    ),
    Change(
        "forced tokens that were decided otherwise stay in the text",
        f"{_CLIENT}/router.py",
        "        del self.tokens[len(self.tokens) - len(self.forced) :]\n",
        "",
    ),
    Change(
        "an ended session's id is lost",
        f"{_CLIENT}/router.py",
        "        self._free_seqs.append(session.seq)\n",
        "",
    ),
    Change(
        "an ended request is remembered",
        f"{_CLIENT}/speculator.py",
        "        self._knowledge.pop(request_id, None)\n",
        "",
    ),
    Change(
        "a lost connection is never made again",
        f"{_CLIENT}/replica.py",
        "return self._clock() >= self._not_before",
        "return not self._not_before",
    ),
    Change(
        "a silent draft is never given up",
        f"{_CLIENT}/connection.py",
        "if self._clock() - self._last_heard > longest:",
        "if False:",
    ),
    Change(
        "a draft that greets again is believed to know everything",
        f"{_CLIENT}/connection.py",
        '            self.lose("the draft has forgotten this engine")\n',
        "            pass\n",
    ),
    # Frames.
    Change(
        "an id of NODES may be its parent's",
        f"{_PROTOCOL}/codec.py",
        "if (parents.view(np.uint32) >= ids.view(np.uint32)).any():",
        "if (parents.view(np.uint32) > ids.view(np.uint32)).any():",
    ),
    Change(
        "tokens of an outcome are not checked",
        f"{_SERVER}/server.py",
        "        faults = faults_of_outcome(message, peer.vocab_size)\n",
        "        faults = dict[int, str]()\n",
    ),
]


FAULTS = {
    "a gap in the frames is ignored": ("lost frame",),
    "children may come in two parts": ("lying draft",),
    "a mirror that is out of sync asks for nothing": ("lost frame",),
    "a draft that greets again is believed to know everything": ("drained draft", "lying target"),
    "refusals of drafts that are gone are kept": ("flood of sequences", "killed draft"),
    "what a draft closed is not opened elsewhere": ("flood of sequences", "lying draft"),
    "addresses that DNS does not name at once are new drafts later": ("other answers",),
    "an outcome that repeats is applied again": ("lying target",),
    "a missing outcome is not noticed": ("lost frame",),
    "a draft that misses an outcome does not ask for the text": ("lost frame",),
    "growth asks for no credit": ("frozen target", "delay"),
    "frames of a peer that was forgotten stay in the queue": ("flood of frames",),
    "weights do not count": ("flood of sequences",),
    "prompts are free": ("flood of sequences",),
    "nobody is told when he is evicted": ("flood of sequences",),
    "nodes that a whole tree has already are sent again": ("lost frame",),
    "an id of NODES may be its parent's": ("lying draft",),
    "tokens of an outcome are not checked": ("lying target",),
}
"""Kinds of faults to which the search for a mutant is limited; of others all kinds are injected."""


class _Loader(SourceFileLoader):
    """Loads a module with a change in its source."""

    def __init__(self, name: str, path: str, change: Change) -> None:
        super().__init__(name, path)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        source = faulty(Path(self.path).read_text(), self._change)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder:
    def __init__(self, change: Change) -> None:
        self._change = change
        self._name = module_of(change)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        found = PathFinder.find_spec(name, path)
        assert found is not None
        assert found.origin is not None
        return importlib.util.spec_from_file_location(
            name, found.origin, loader=_Loader(name, found.origin, self._change)
        )


def module_of(change: Change) -> str:
    return ".".join(Path(change.path).with_suffix("").parts[1:])


def search(change: Change, num_seeds: int) -> dict[str, Any]:
    """Runs seeds with the mutant until one ends with a violation; in a process that imported no draft yet."""
    name = module_of(change)
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already: a mutant needs a process of its own")
    sys.meta_path.insert(0, _Finder(change))
    simulate = importlib.import_module("campaigns.pool.simulate")
    started = time.process_time()
    for seed in range(num_seeds):
        found = simulate.run_seed(seed, kinds=FAULTS.get(change.name, ()))
        if found.violation:
            seconds = round(time.process_time() - started, 1)
            return {"found": True, "seeds": seed + 1, "cpu_seconds": seconds, "violation": found.violation}
    return {"found": False, "seeds": num_seeds, "cpu_seconds": round(time.process_time() - started, 1)}


def searched(changes: Sequence[Change], num_seeds: int) -> Iterator[dict[str, Any]]:
    """The same for several, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    # It takes long to import, and has no draft in it.
    context.set_forkserver_preload(["torch"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        yield from pool.imap(partial(search, num_seeds=num_seeds), changes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="mutants with this word in their name or path")
    parser.add_argument("--seeds", type=int, default=200, help="that each is given")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    chosen = [each for each in MUTANTS if options.only in each.name or options.only in each.path]
    if not chosen:
        parser.error(f"no mutant has {options.only!r} in its name or path")
    record = Record(options.record, {"seeds": options.seeds}) if options.record else None
    if record:
        chosen = [each for each in chosen if record.find(each.name) is None]
    survivors = 0
    for change, found in zip(chosen, searched(chosen, options.seeds), strict=True):
        if record:
            record.add(change.name, found)
        survivors += not found["found"]
        verdict = f"seed {found['seeds'] - 1}: {found['violation']}" if found["found"] else "NOT FOUND"
        sys.stdout.write(f"{change.name:<70} {found['cpu_seconds']:>6.1f} s  {verdict}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - survivors} of {len(chosen)} mutants found\n")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
