"""A draft on a host: the real service and line, with a rule and a sleep for the model.

    python -m tests.network.draft tcp://10.77.0.2:7000 --keys FOLDER --step 0.002

Prints a line once it listens, and ends as `ssd draft` does.
"""

from pathlib import Path

import torch

from benchmarks.flags import parser
from benchmarks.ruled import grower_of, hello
from benchmarks.sleeping import SleepingDraft
from ssd.draft.link import Keys, ZmqDraftLink
from ssd.draft.service import DraftService
from ssd.processes.signals import Signals
from tests.network.programs import say

FLAGS: dict[str, object] = {"address:": str, "keys": None, "step": 0.002, "name": "draft"}


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    torch.set_num_threads(1)
    signals = Signals()
    link = ZmqDraftLink(options.address, Keys(Path(options.keys)) if options.keys else None)
    service = DraftService(
        grower_of(SleepingDraft(options.step), prefill_chunk=1024), link, hello(options.name)
    )
    say({"listens": options.address})
    service.run(signals.have_come)
    link.close()


if __name__ == "__main__":
    main()
