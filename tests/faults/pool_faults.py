"""Faults of a line with several drafts: who gets a sequence, and who gets it next."""

from tests.faults.fault import Fault

_SRC = "src/ssd/draft"
_POOL, _CHOICE, _SOURCES = (f"tests/draft/test_{name}.py" for name in ("pool", "choice", "sources"))

FAULTS = [
    Fault(
        "a choice depends on the whole text",
        f"{_SRC}/choice.py",
        "np.asarray(tokens[:_PREFIX_TOKENS], dtype",
        "np.asarray(tokens[:], dtype",
        f"{_CHOICE}::test_texts_that_begin_alike_go_to_the_same_draft",
    ),
    Fault(
        "every text has the same favourite",
        f"{_SRC}/choice.py",
        "return blake2b(prefix, digest_size=8",
        "return blake2b(b'', digest_size=8",
        f"{_CHOICE}::test_texts_of_all_kinds_are_spread_evenly",
    ),
    Fault(
        "loads have no bound",
        f"{_SRC}/choice.py",
        "if each.num_sequences < most]",
        "]",
        f"{_CHOICE}::test_texts_that_all_begin_alike_fill_no_draft_beyond_its_share",
    ),
    Fault(
        "only ours count in a draft's load",
        f"{_SRC}/strand.py",
        "return max(announced, self.num_followed)",
        "return self.num_followed",
        f"{_POOL}::test_a_draft_that_says_it_is_full_of_others_gets_less",
    ),
    Fault(
        "every draft is told every outcome",
        f"{_SRC}/client.py",
        "            said = heads if mine is None else",
        "            said = heads if True else",
        f"{_POOL}::test_sequences_are_shared_out_and_each_draft_hears_of_its_own",
    ),
    Fault(
        "what was lost with a draft stays without one",
        f"{_SRC}/client.py",
        "            self._part(followed)\n        self._open_all()\n",
        "            self._part(followed)\n",
        f"{_POOL}::test_a_draft_that_is_lost_hands_its_sequences_to_another_at_once",
    ),
    Fault(
        "a stalled draft gets back what it just lost",
        f"{_SRC}/client.py",
        "        self._open_all(but=strand)\n",
        "        self._open_all()\n",
        f"{_POOL}::test_drafts_that_are_no_longer_named_are_left_once_there_is_another",
    ),
    Fault(
        "a draft that stalls is kept",
        f"{_SRC}/line.py",
        "        if strand.is_stalled and self._has_another(strand):",
        "        if False:",
        f"{_POOL}::test_a_draft_that_stalls_is_left_though_its_contact_stands",
    ),
    Fault(
        "one that stalls is left for another that does",
        f"{_SRC}/line.py",
        "each is not strand and not each.is_stalled for",
        "each is not strand for",
        f"{_POOL}::test_two_that_both_stall_are_not_played_off_against_each_other",
    ),
    Fault(
        "a word is no sign of life",
        f"{_SRC}/line.py",
        "                strand.note_heard()\n",
        "",
        f"{_POOL}::test_a_draft_that_stalls_is_left_though_its_contact_stands",
    ),
    Fault(
        "a late draft hands on to one that is as late",
        f"{_SRC}/line.py",
        "strand.is_late and any(each.is_prompt for each in self.ready)",
        "strand.is_late",
        f"{_POOL}::test_a_draft_that_is_mostly_late_hands_on_one_sequence_at_a_time",
    ),
    Fault(
        "a late draft hands on all it has",
        f"{_SRC}/line.py",
        "            strand.note_lightened()\n",
        "",
        f"{_POOL}::test_a_draft_that_is_mostly_late_hands_on_one_sequence_at_a_time",
    ),
    Fault(
        "whoever one draft declines is declined by all",
        f"{_SRC}/client.py",
        "                    self._decline(followed, strand, message.reason, may_return=message.may_return)\n                    self._open(followed)\n",
        "                    self._decline(followed, strand, message.reason, may_return=message.may_return)\n",
        f"{_POOL}::test_what_one_has_no_room_for_another_may_have",
    ),
    Fault(
        "the last draft that is named is left for nobody",
        f"{_SRC}/line.py",
        "if not is_named and (not strand.is_ready or self._has_another(strand)):",
        "if not is_named:",
        f"{_POOL}::test_drafts_that_are_no_longer_named_are_left_once_there_is_another",
    ),
    Fault(
        "a replacement that refuses is replaced by nobody",
        f"{_SRC}/line.py",
        "            self._finish([strand])\n            if not any",
        "            if not any",
        f"{_POOL}::test_a_replacement_that_refuses_changes_nothing",
    ),
    Fault(
        "watchers hear of every draft",
        f"{_SRC}/line.py",
        "        if was_alone:\n",
        "        if True:\n",
        f"{_POOL}::test_whoever_watches_hears_of_the_first_and_the_last_only",
    ),
    Fault(
        "a name that cannot be looked up has no drafts",
        f"{_SRC}/sources.py",
        '            self._problem = f"no address of',
        '            self._sources = {}\n            self._problem = f"no address of',
        f"{_SOURCES}::test_a_name_that_cannot_be_looked_up_is_no_news_of_its_drafts",
    ),
    Fault(
        "a draft whose name is looked up again is another one",
        f"{_SRC}/sources.py",
        "self._sources.get(each) or self._source_at(each)",
        "self._source_at(each)",
        f"{_SOURCES}::test_drafts_come_and_go_with_the_addresses_of_their_name",
    ),
]
