"""The command line of a program here, made of a table of its flags; so what docs name can be held against it.

A type: it must be said. False: a switch. A list: one or more of such. None: a text, or nothing. Any other
value holds unless another is said. A name that ends in a colon has a place and no dashes.
"""

import argparse
from collections.abc import Mapping
from typing import Any


def parser(doc: str | None, flags: Mapping[str, object]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in flags.items():
        how: dict[str, Any] = {"type": type(value), "default": value}
        if value is False:
            how = {"action": "store_true"}
        elif value is None:
            how = {}
        elif isinstance(value, type):
            how = {"type": value} if name.endswith(":") else {"type": value, "required": True}
        elif isinstance(value, list):
            how = {"type": type(value[0]), "nargs": "+", "default": value}
        made.add_argument(name[:-1] if name.endswith(":") else f"--{name}", **how)
    return made
