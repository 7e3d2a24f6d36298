"""`ssd draft`: runs a draft server."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ssd.cli.config_file import ConfigFile
from ssd.cli.console import user_errors
from ssd.cli.options import GivenSettings, SettingsOf, with_options
from ssd.config import DraftConfig
from ssd.config.server import LOG_FORMAT_VARIABLE, LogFormat
from ssd.models.names import path_or_hub_name
from ssd.processes.logs import usual_format

logger = logging.getLogger(__name__)

_SIGNALLED = 128
"""A shell's exit code for a signal is this plus the signal's number."""


@with_options
def draft(
    listen: Annotated[
        str,
        typer.Option(help="Where engines connect: ipc:///path/to/socket, or tcp://host:port with --keys."),
    ] = "",
    make_keys: Annotated[
        Path | None,
        typer.Option(help="Write new keys into this folder and exit. Move FOLDER/engine to the engine."),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(help="With --make-keys: make keys for engines of this tenant."),
    ] = None,
    hf_cache: Annotated[
        str | None, typer.Option(envvar="SSD_HF_CACHE", help="Folder for models from the hub.")
    ] = None,
    config_file: ConfigFile = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            envvar=LOG_FORMAT_VARIABLE, help="text or json; default: text on a terminal, else json."
        ),
    ] = None,
    lifeline: Annotated[
        bool, typer.Option(hidden=True, help="Exit and remove the socket when standard input is closed.")
    ] = False,
    *,
    options: Annotated[GivenSettings, SettingsOf(DraftConfig, without=("timeout", "pool_size"))],
) -> None:
    """Run a draft that several engines can share.

    Start it, then give its address to an engine:

        ssd draft --model SMALL_MODEL --listen ipc:///tmp/draft.sock

        ssd generate MODEL --draft ipc:///tmp/draft.sock -p "Once upon a time"
    """
    _stay_on(options.get("cores", ()))
    # A draft that an engine started logs in text among the engine's lines, unless a server sets the format.
    with _start_log(log_format or ("text" if lifeline else usual_format())):
        if make_keys is not None:
            _make_keys(make_keys, tenant)
            return
        if not options.get("model") or not listen:
            raise ValueError("a draft needs --model and --listen (or --make-keys): see ssd draft --help")
        path_or_hub_name(options["model"])
        from ssd.draft.server.main import build_server, open_socket
        from ssd.models.hub import local_model
        from ssd.processes.lifeline import end_with_parent
        from ssd.processes.signals import ENDINGS, Signals
        from ssd.processes.sockets import remove_socket

        config = DraftConfig(**options)
        config = replace(config, model=local_model(config.model, hf_cache=hf_cache))
        if lifeline:
            end_with_parent(partial(remove_socket, listen))
        for number in ENDINGS:
            signal.signal(number, _end_now)
        with ExitStack() as loading:
            link = open_socket(listen, config.keys)
            loading.callback(link.close)
            service = build_server(config, link)
            signals, drain_signals = Signals(), Signals([signal.SIGUSR1])
            loading.pop_all()
        if not lifeline:
            typer.echo(f"drafting with {options['model']} on {listen}; stop with Ctrl-C")
    # Errors from here on are bugs, not wrong settings.
    try:
        service.run(signals.have_come, drain_signals.have_come)
    finally:
        link.close()


def _make_keys(folder: Path, tenant: str | None) -> None:
    from ssd.draft.protocol.sockets import make_keys, make_tenant_keys

    if tenant is not None:
        make_tenant_keys(folder, tenant)
        typer.echo(
            f"keys written: move {folder / tenant} to the engines of {tenant} (--draft-keys), and restart "
            f"the draft, which then accepts them by {folder / 'draft' / tenant}.key"
        )
        return
    make_keys(folder)
    typer.echo(
        f"keys written: {folder / 'draft'} is for the draft (--keys); move {folder / 'engine'} to the "
        "engine's machine (--draft-keys); neither side needs the other's folder"
    )


def _stay_on(cores: tuple[int, ...]) -> None:
    """Pin the process before torch is imported: the import runs on each usable core to count them.

    On a core that is busy with a target this may take minutes.
    """
    # Invalid cores are reported later, when the model is loaded.
    with suppress(AttributeError):
        if cores and set(cores) <= os.sched_getaffinity(0):
            os.sched_setaffinity(0, cores)


@contextmanager
def _start_log(form: LogFormat) -> Iterator[None]:
    """Start logging in this format; user errors are logged in it too."""
    from ssd.processes.logs import start_log

    start_log("draft", "warning", form)
    if form == "text":
        with user_errors():
            yield
        return
    with user_errors(lambda message: logger.error("%s", message)):
        yield


def _end_now(number: int, _frame: object) -> None:
    """Exit at once on a signal while the model is loading: no engine uses the draft yet."""
    raise SystemExit(_SIGNALLED + number)
