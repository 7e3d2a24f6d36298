"""Server options of `ssd serve`, for both engines."""

import os
from typing import Annotated

from ssd.cli.options import Said, SettingsOf
from ssd.config.schema import fields_of
from ssd.config.server import ServerConfig
from ssd.processes.logs import usual_format

ServerOptions = Annotated[Said, SettingsOf(ServerConfig)]


def server_config(said: Said) -> ServerConfig:
    """The server's config. Raises ValueError if SSD_API_KEY is set but empty: the server would be open."""
    variable = fields_of(ServerConfig)["api_keys"].about.variable
    if variable is not None and not said.get("api_keys") and os.environ.get(variable) == "":
        raise ValueError(f"{variable} is set but empty: give it a key, or unset it to serve without one")
    return ServerConfig(**{"log_format": usual_format(), **said})
