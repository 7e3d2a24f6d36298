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
    parser = argparse.ArgumentParser(
        prog="python -m ssd.draft.conformance",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument("--draft", metavar="ADDRESS", help="plays targets against the draft that listens here")
    side.add_argument("--target", metavar="ADDRESS", help="plays a draft that listens here")
    parser.add_argument(
        "--keys",
        type=Path,
        help="for TCP: the engine's folder of keys with --draft, the draft's with --target",
    )
    options = parser.parse_args()
    keys = Keys(options.keys) if options.keys else None
    try:
        check_address(options.draft or options.target, keys)
    except ValueError as error:
        parser.error(str(error))
    report, rules = Report(), OF_DRAFTS if options.draft else OF_TARGETS
    if options.draft:
        if not check_draft(options.draft, keys, report):
            parser.error(f"no draft answers HELLO at {options.draft}: check that it runs, and its --listen")
    else:
        sys.stderr.write(
            f"Listens at {options.target}. Let the target generate texts until this command ends.\n"
        )
        sys.stderr.flush()
        link = ZmqDraftSocket(options.target, keys)
        try:
            TargetChecks(link, report).run()
        finally:
            link.close()
    sys.stdout.writelines(f"{line}\n" for line in report.lines(rules))
    return int(bool(report.broken))


def check_draft(address: str, keys: Keys | None, report: Report) -> bool:
    """False: no draft answers."""
    with ExitStack() as folders:
        unknown = None
        if keys is not None:
            folder = Path(folders.enter_context(tempfile.TemporaryDirectory()))
            make_keys(folder / "new")
            # The right draft, and a key of ours that it has never seen.
            public = folder / "new/engine/draft.key"
            public.write_bytes((keys.folder / "draft.key").read_bytes())
            unknown = partial(ZmqEngineSocket, address, Keys(folder / "new/engine"))
        return DraftChecks(partial(ZmqEngineSocket, address, keys), report, unknown).run()


if __name__ == "__main__":
    sys.exit(main())
