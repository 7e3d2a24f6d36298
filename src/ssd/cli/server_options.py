"""What a server can be told on the command line; one definition, whoever verifies."""

import os
from typing import Annotated

from ssd.cli.options import Said, SettingsOf
from ssd.config.schema import fields_of
from ssd.config.server import ServerConfig
from ssd.processes.logs import usual_format

ServerOptions = Annotated[Said, SettingsOf(ServerConfig)]


def server_config(said: Said) -> ServerConfig:
    """A variable that is set to nothing was meant to be a key, and would open the server: ValueError."""
    variable = fields_of(ServerConfig)["api_keys"].about.variable
    if variable is not None and not said.get("api_keys") and os.environ.get(variable) == "":
        raise ValueError(f"{variable} is set but empty: give it a key, or unset it to serve without one")
    return ServerConfig(**{"log_format": usual_format(), **said})
