"""Faults of what bounds the harm that one request, one peer or one draft can do."""

from tests.faults.fault import Fault

_SRC = "src/ssd/draft"
_REQUESTS = "tests/draft/test_hostile_requests.py"

FAULTS = [
    Fault(
        "a draft takes in what breaks a rule",
        f"{_SRC}/service.py",
        "fault = fault_of_opening(message, peer.vocab_size)",
        'fault = ""',
        f"{_REQUESTS}::test_an_opening_that_breaks_a_rule_costs_its_sequence_alone",
    ),
    Fault(
        "a draft takes in an outcome that breaks a rule",
        f"{_SRC}/service.py",
        "faults = faults_of_outcome(message, peer.vocab_size)",
        "faults = dict[int, str]()",
        f"{_REQUESTS}::test_an_entry_of_outcome_that_breaks_a_rule_costs_its_sequence_alone",
    ),
    Fault(
        "a host tells end ids that no vocabulary has",
        f"{_SRC}/rules.py",
        "end_ids=[each for each in sampling.end_ids if 0 <= each < vocab_size][:MAX_LIST]",
        "end_ids=sampling.end_ids[:MAX_LIST]",
        f"{_REQUESTS}::test_what_a_draft_can_be_told_is_what_it_takes",
    ),
    Fault(
        "a request whose parameters cannot travel is opened all the same",
        "src/ssd/integrations/vllm/requests.py",
        "return tellable(_sampling(params, seed, coupled=coupled), MAX_ID)",
        "return _sampling(params, seed, coupled=coupled)",
        "tests/vllm/test_hostile_requests.py::test_what_a_worker_reads_of_a_request_costs_that_request_alone",
    ),
]
