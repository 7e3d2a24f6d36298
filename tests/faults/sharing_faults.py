"""Faults of a draft that many targets share: whose turn it is, who gives way, who is who."""

from tests.faults.fault import Fault

DRAFT = "src/ssd/draft"
_SHARING, _LINK, _GONE = (
    f"tests/draft/{name}.py" for name in ("server/test_sharing", "protocol/test_sockets", "server/test_gone")
)

FAULTS = [
    Fault(
        "rows go by value alone, whoever they are for",
        f"{DRAFT}/server/host_steps.py",
        "forest.is_shared = given.usage is not None",
        "forest.is_shared = False",
        f"{_SHARING}::test_rows_stand_as_weights_do_while_everyone_wants_more",
    ),
    Fault(
        "weights do not count",
        f"{DRAFT}/server/tenants.py",
        "self.weight_of(name), self._debts.pop",
        "1.0, self._debts.pop",
        f"{_SHARING}::test_on_tensors_turns_fall_as_on_arrays",
    ),
    Fault(
        "rows count alike for light and heavy",
        f"{DRAFT}/server/tenants.py",
        "self.used += num_had / self.weight",
        "self.used += num_had",
        f"{_SHARING}::test_rows_count_by_weight",
    ),
    Fault(
        "prompts are free",
        f"{DRAFT}/server/tenants.py",
        "            beside[row] += count * demand.is_same[row]\n",
        "            pass\n",
        f"{_SHARING}::test_a_newcomer_takes_no_more_than_its_share",
    ),
    Fault(
        "who owes rows reads prompts all the same",
        f"{DRAFT}/server/tenants.py",
        "name: 0 if owes[number] else max(1,",
        "name: max(1,",
        f"{_SHARING}::test_a_newcomer_takes_no_more_than_its_share",
    ),
    Fault(
        "what those leave that owe rows is lost",
        f"{DRAFT}/server/tenants.py",
        "if (active & owes).any() and (active & ~owes).any():",
        "if not active.any():",
        f"{_SHARING}::test_a_tenant_that_only_reads_prompts_gets_its_rows",
    ),
    Fault(
        "who rests saves up",
        f"{DRAFT}/server/tenants.py",
        "self.used = np.maximum(self.used - least, 0.0)",
        "self.used = self.used - least",
        f"{_SHARING}::test_who_wants_nothing_saves_nothing",
    ),
    Fault(
        "who goes owes nothing",
        f"{DRAFT}/server/tenants.py",
        "            self._debts[name] = float(self.used[number])\n",
        "            pass\n",
        f"{_SHARING}::test_who_has_had_too_much_owes_it_also_after_it_went",
    ),
    Fault(
        "debts outlive want",
        f"{DRAFT}/server/tenants.py",
        "        if not self._wants.any():\n            self.reset()\n            return\n",
        "        if not self._wants.any():\n            return\n",
        f"{_SHARING}::test_nobody_owes_anything_once_all_have_what_they_want",
    ),
    Fault(
        "tenants see what others have had read",
        f"{DRAFT}/server/kv.py",
        "session.tokens, cache_key=session.tenant)",
        "session.tokens)",
        f"{_SHARING}::test_what_is_read_of_a_prompt_is_for_its_tenant_alone",
    ),
    Fault(
        "the most valuable sequence goes",
        f"{DRAFT}/server/tenants.py",
        "return min(mine, key=lambda each: each.rank).row",
        "return max(mine, key=lambda each: each.rank).row",
        f"{_SHARING}::test_a_tenant_with_too_many_sequences_for_its_rows_loses_those_that_gain_least",
    ),
    Fault(
        "newcomers take from whoever has no more than they",
        f"{DRAFT}/server/tenants.py",
        "in held.items() if share > due})",
        "in held.items()})",
        f"{_SHARING}::test_trees_are_shared_by_weight_and_who_had_to_go_comes_back",
    ),
    Fault(
        "who came first keeps all trees",
        f"{DRAFT}/server/server.py",
        "if not self._evict(admission.for_tree(peer.tenant), _NO_SHARE):",
        "if True:",
        f"{_SHARING}::test_trees_are_shared_by_weight_and_who_had_to_go_comes_back",
    ),
    Fault(
        "who came first keeps all blocks",
        f"{DRAFT}/server/server.py",
        "                if not self._evict(gone, _NO_SHARE):\n",
        "                if gone is not None:\n",
        f"{_SHARING}::test_blocks_are_shared_too",
    ),
    Fault(
        "who had to go may not come back",
        f"{DRAFT}/server/server.py",
        "                    self._send(peer, [Close(session.seq, session.epoch, reason, may_return=True)])\n",
        "                    self._send(peer, [Close(session.seq, session.epoch, reason)])\n",
        f"{_SHARING}::test_trees_are_shared_by_weight_and_who_had_to_go_comes_back",
    ),
    Fault(
        "a tenant keeps more sequences than its rows are enough for",
        f"{DRAFT}/server/server.py",
        "        self._evict(admission.for_rows(), _NO_ROWS)\n",
        "",
        f"{_SHARING}::test_a_tenant_with_too_many_sequences_for_its_rows_loses_those_that_gain_least",
    ),
    Fault(
        "who was declined asks again with every word of the draft",
        f"{DRAFT}/client/replica.py",
        "        return 0 if stats.drains else max(0, (stats.free_sequences or 0) - self._num_promised)\n",
        "        return 1\n",
        f"{_SHARING}::test_who_was_declined_does_not_ask_again_with_every_word_of_the_draft",
    ),
    Fault(
        "all who were declined ask again at once",
        f"{DRAFT}/client/replica.py",
        "        self._is_kept, self._tried_at = True, self._clock()\n",
        "        self._is_kept = True\n",
        f"{_SHARING}::test_who_was_declined_does_not_ask_again_with_every_word_of_the_draft",
    ),
    Fault(
        "all keys are one tenant's",
        f"{DRAFT}/server/server.py",
        'tenant = heard.key or f"{hello.name} {hello.instance}"',
        'tenant = ""',
        f"{_SHARING}::test_engines_of_one_key_are_one_tenant_and_those_without_one_each_their_own",
    ),
    Fault(
        "a key has no name",
        f"{DRAFT}/protocol/sockets.py",
        'return "" if name == _SHARED_KEY else name',
        'return ""',
        f"{_LINK}::test_a_tenant_is_let_in_by_its_key_and_known_by_its_name",
    ),
    Fault(
        "a draft's death is noticed by its silence only",
        f"{DRAFT}/protocol/sockets.py",
        "return self._has_heard and self._backlog is None",
        "return False",
        f"{_LINK}::test_the_end_of_a_draft_is_noticed_though_it_says_nothing",
    ),
    Fault(
        "a draft's last word is not read",
        f"{DRAFT}/protocol/sockets.py",
        "                frame = self._next()\n                if frame is None:\n",
        "                if True:\n",
        f"{_LINK}::test_last_words_are_read_though_the_end_is_seen_first",
    ),
    Fault(
        "who is cut off stays for half a minute",
        f"{DRAFT}/protocol/sockets.py",
        "_DRAFTS_HEARTBEAT = (1_500, 5_000)",
        "_DRAFTS_HEARTBEAT = (5_000, 20_000)",
        f"{_GONE}::test_sessions_of_who_is_killed_or_cut_off_are_gone_within_ten_seconds",
    ),
]
