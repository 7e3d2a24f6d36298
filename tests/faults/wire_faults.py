"""Faults of what bounds the harm that one request, one peer or one draft can do."""

from tests.faults.fault import Fault

DRAFT = "src/ssd/draft"
_INTAKE = "tests/draft/server/test_frames.py"
_FLOODS = "tests/draft/protocol/test_floods.py"
_REQUESTS = "tests/draft/test_hostile_requests.py"

FAULTS = [
    Fault(
        "a draft takes in what breaks a rule",
        f"{DRAFT}/server/server.py",
        " or fault_of_opening(message, peer.vocab_size)",
        "",
        f"{_REQUESTS}::test_an_opening_that_breaks_a_rule_costs_its_sequence_alone",
    ),
    Fault(
        "a draft takes in an outcome that breaks a rule",
        f"{DRAFT}/server/server.py",
        "faults = faults_of_outcome(message, peer.vocab_size)",
        "faults = dict[int, str]()",
        f"{_REQUESTS}::test_an_outcome_that_breaks_a_rule_closes_its_sequence",
    ),
    Fault(
        "a host tells end ids that no vocabulary has",
        f"{DRAFT}/protocol/codec.py",
        "end_ids=[each for each in sampling.end_ids if 0 <= each < vocab_size][:MAX_LIST]",
        "end_ids=sampling.end_ids[:MAX_LIST]",
        f"{_REQUESTS}::test_end_ids_that_no_vocabulary_has_are_left_out",
    ),
    Fault(
        "a draft keeps end ids that it lacks",
        f"{DRAFT}/server/server.py",
        "message = without_foreign_ends(message, peer.vocab_size)",
        "pass",
        f"{_REQUESTS}::test_an_opening_of_an_older_engine_loses_its_foreign_end_ids_only",
    ),
    Fault(
        "a flood is applied until it ends",
        f"{DRAFT}/server/frames.py",
        "            if ended >= ends:\n                break\n",
        "",
        f"{_INTAKE}::test_a_flood_waits_and_others_do_not",
    ),
    Fault(
        "whoever sent first is applied first",
        f"{DRAFT}/server/frames.py",
        "tenant = min(self._waiting, key=self._spent.__getitem__)",
        "tenant = next(iter(self._waiting))",
        f"{_INTAKE}::test_a_flood_waits_and_others_do_not",
    ),
    Fault(
        "any number of bytes is held for a key",
        f"{DRAFT}/server/frames.py",
        "elif self._bytes_of_key[heard.key] > MAX_BYTES_OF_KEY:",
        "elif False:",
        f"{_INTAKE}::test_more_bytes_than_are_held_cost_the_peer_that_sent_them",
    ),
    Fault(
        "whoever speaks last pays for the bytes of its key",
        f"{DRAFT}/server/frames.py",
        "too_many.append(self._largest_of(heard.key))",
        "too_many.append(heard.peer)",
        f"{_INTAKE}::test_of_a_key_with_too_many_bytes_the_peer_that_has_the_most_goes",
    ),
    Fault(
        "nobody looks at what waits unread at a draft",
        f"{DRAFT}/protocol/read_guard.py",
        "too_many = [descriptor for descriptor, count in unread.items() if count > self._most]",
        "too_many = list[int]()\n        return",
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_a_draft",
    ),
    Fault(
        "nobody looks at what waits unread at an engine",
        f"{DRAFT}/client/pool.py",
        "broken = broken or replica.overfull()",
        "pass",
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_an_engine",
    ),
    Fault(
        "a connection whose queue is full is not read",
        f"{DRAFT}/protocol/sockets.py",
        "_UNREAD_FRAMES = 0",
        "_UNREAD_FRAMES = 8",
        f"{_FLOODS}::test_an_engine_that_ends_during_a_long_step_does_not_end_the_draft",
    ),
]
