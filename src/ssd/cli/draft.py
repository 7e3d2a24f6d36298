"""`ssd draft`: the draft service as a program of its own."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ssd.cli.config_file import ConfigFile
from ssd.cli.draft_options import DraftOptions
from ssd.cli.errors import user_errors
from ssd.cli.options import parse_cores, with_options
from ssd.config import DraftConfig

logger = logging.getLogger(__name__)


@with_options
def draft(
    listen: Annotated[
        str,
        typer.Option(help="Where engines connect: ipc:///path/to/socket, or tcp://host:port with --keys."),
    ] = "",
    make_keys: Annotated[
        Path | None,
        typer.Option(help="Write new keys into this folder, and end. Move FOLDER/engine to the engine."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="With --make-keys: a further folder beside those, for engines of this name."),
    ] = None,
    hf_cache: Annotated[
        str | None, typer.Option(envvar="SSD_HF_CACHE", help="Where models of the hub are kept.")
    ] = None,
    config_file: ConfigFile = None,
    log_format: Annotated[
        str, typer.Option(envvar="SSD_LOG_FORMAT", help="text, or json: one object a line.")
    ] = "text",
    lifeline: Annotated[
        bool, typer.Option(hidden=True, help="End with standard input, socket included.")
    ] = False,
    *,
    options: DraftOptions,
) -> None:
    """Run a draft that any number of engines can use.

    Start it, then give its address to an engine:

        ssd draft --model SMALL_MODEL --listen ipc:///tmp/draft.sock

        ssd generate MODEL --draft ipc:///tmp/draft.sock -p "Once upon a time"
    """
    _stay_on(options.cores or "")
    from ssd.draft.link import make_keys as write_keys
    from ssd.draft.link import make_tenant_keys
    from ssd.draft.program import build_service, open_link, start_team
    from ssd.models.hub import local_model
    from ssd.processes.lifeline import end_with_parent
    from ssd.processes.signals import Signals
    from ssd.processes.sockets import remove_socket
    from ssd.runtime.ranks.followers import EXIT_CODE
    from ssd.runtime.ranks.group import RankLost

    with _start_log(log_format):
        if make_keys is not None and tenant is not None:
            make_tenant_keys(make_keys, tenant)
            typer.echo(
                f"keys are made: {make_keys / tenant} is for whoever verifies as {tenant} (--draft-keys); "
                f"the draft knows it by {make_keys / 'draft' / tenant}.key once it is started anew"
            )
            return
        if make_keys is not None:
            write_keys(make_keys)
            typer.echo(
                f"keys are made: {make_keys / 'draft'} is for the draft (--keys), {make_keys / 'engine'} for "
                "whoever verifies (--draft-keys), on its machine; neither needs the other's folder"
            )
            return
        if not options.model or not listen:
            raise ValueError("a draft needs --model and --listen (or --make-keys): see ssd draft --help")
        config = DraftConfig(**options.settings())
        config = replace(config, model=local_model(config.model, hf_cache=hf_cache))
        signals = Signals()
        if lifeline:
            end_with_parent(partial(remove_socket, listen))
        link = open_link(listen, config.keys)
        team = start_team(config)
        service = build_service(config, link, team)
        if not lifeline:
            typer.echo(f"drafting with {options.model} on {listen}; stop with Ctrl-C")
    # What goes wrong from here on is nobody's setting.
    try:
        service.run(signals.have_come)
    except RankLost as lost:
        logger.error("%s: the draft ends", lost)
        raise typer.Exit(EXIT_CODE) from None
    finally:
        if team is not None:
            team.close()
        link.close()


def _stay_on(cores: str) -> None:
    """Before torch is there: on import it visits each core that it may use, to count them.

    On one where a target computes it may have to wait for minutes until it is its turn.
    """
    # Whatever is wrong with them is said later, by those who know what is usable.
    with suppress(ValueError, AttributeError):
        if (wanted := set(parse_cores(cores))) and wanted <= os.sched_getaffinity(0):
            os.sched_setaffinity(0, wanted)


@contextmanager
def _start_log(form: str) -> Iterator[None]:
    """From here on, what is logged and what is wrong is written so."""
    from ssd.processes.logs import log_as_json

    if form != "json":
        with user_errors():
            if form != "text":
                raise ValueError(f"log_format={form!r}: use text or json")
            logging.basicConfig(level=logging.WARNING, format="draft: %(message)s")
            yield
        return
    log_as_json("draft", "warning")
    try:
        yield
    except ValueError as error:
        logger.error("%s", error)
        raise typer.Exit(2) from None
