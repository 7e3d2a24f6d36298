"""`ssd draft` that also says how it goes: rows by tenant, and in how many steps each would have had more.

    python -m tests.e2e.telling_draft alice,bob 0.1 draft --model MODEL --listen ADDRESS --lifeline

The tenants to tell of, seconds between two lines, and the command as it is. Nothing else of it is changed.
"""

import sys
from collections.abc import Callable
from unittest.mock import patch

from ssd.cli.main import app
from ssd.draft.server.server import DraftServer
from tests.network.draft import Teller


def main() -> None:
    names, every, *words = sys.argv[1:]
    run = DraftServer.run

    def run_and_tell(service: DraftServer, is_over: Callable[[], bool], drains: Callable[[], bool]) -> None:
        teller = Teller(service._scheduler, names.split(","), float(every))

        def told_and_over() -> bool:
            teller.note()
            return is_over()

        run(service, told_and_over, drains)

    with patch.object(DraftServer, "run", run_and_tell):
        app(words)


if __name__ == "__main__":
    main()
