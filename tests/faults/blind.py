"""Small mistakes over all packages, thought of without a look at the tests: how many are noticed?

Each changes something that a user, an operator or a client could notice. The list stands: where one goes
unnoticed a test is missing, and the list is no place to mend that. `python -m tests.faults.blind_run` runs it.
"""

from tests.faults import blind_compute, blind_draft, blind_engine, blind_server
from tests.faults.fault import BlindFault

BLIND: list[BlindFault] = [
    *blind_draft.BLIND,
    *blind_engine.BLIND,
    *blind_compute.BLIND,
    *blind_server.BLIND,
]
