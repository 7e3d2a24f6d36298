"""The command line of the conformance kit.

    python -m ssd.draft.conformance --draft ADDRESS [--keys FOLDER]
    python -m ssd.draft.conformance --target ADDRESS [--keys FOLDER]

Exit codes: 0 no rule was broken, 1 some were, 2 the command is wrong.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ssd.draft.conformance.of_draft import DraftChecks
from ssd.draft.conformance.of_target import TargetChecks
from ssd.draft.conformance.report import OF_DRAFTS, OF_TARGETS, Report
from ssd.draft.protocol.sockets import Keys, ZmqDraftSocket, ZmqEngineSocket, check_address, make_keys


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ssd.draft.conformance", description=__doc__)
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--draft", metavar="ADDRESS", help="plays targets against the draft that listens here")
    side.add_argument("--target", metavar="ADDRESS", help="plays a draft that listens here")
    parser.add_argument("--keys", type=Path, help="folder of keys, for TCP: the played side's")
    options = parser.parse_args()
    keys = Keys(options.keys) if options.keys else None
    try:
        check_address(options.draft or options.target, keys)
    except ValueError as error:
        parser.error(str(error))
    report, rules = Report(), OF_DRAFTS if options.draft else OF_TARGETS
    if options.draft:
        check_draft(options.draft, keys, report)
    else:
        link = ZmqDraftSocket(options.target, keys)
        try:
            TargetChecks(link, report).run()
        finally:
            link.close()
    sys.stdout.writelines(f"{line}\n" for line in report.lines(rules))
    return int(bool(report.broken))


def check_draft(address: str, keys: Keys | None, report: Report) -> None:
    with ExitStack() as folders:
        unknown = None
        if keys is not None:
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory()))
            make_keys(folder / "new")
            # The right draft, and a key of ours that it has never seen.
            public = folder / "new/engine/draft.key"
            public.write_bytes((keys.folder / "draft.key").read_bytes())
            unknown = partial(ZmqEngineSocket, address, Keys(folder / "new/engine"))
        DraftChecks(partial(ZmqEngineSocket, address, keys), report, unknown).run()


if __name__ == "__main__":
    sys.exit(main())
