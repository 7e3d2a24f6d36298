"""Data sheets of devices by name: bandwidth, arithmetic, memory, links, and what calls to them cost.

The built-in table is `data/hardware.toml`, with its sources; users may give a file of the same format.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

_FIELDS = ("bandwidth", "flops", "memory", "link", "reduce")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCosts:
    """What calls to a GPU cost, in seconds, where nothing was measured. Sources: `data/hardware.toml`."""

    launch: float
    """Of the host, to launch a kernel."""
    replay: float
    """Of the host, to replay a graph."""
    node: float
    """Of the device, for each kernel, beside its bytes: the gap before it, and until all of it is at work."""
    copy: float
    """Of the host, to submit a copy."""
    wait: float
    """From the end of the work that the host waits for until it goes on."""
    pcie: float
    """Bytes per second between host and device."""
    share: float
    """Of the bandwidth that the data sheet says: what a kernel reaches."""
    profiled: float | None = None
    """For each kernel of a profiled step, the host's part included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: str
    bandwidth: float
    """Memory bandwidth in bytes per second."""
    flops: float
    """bfloat16 operations per second."""
    memory: float
    """Bytes."""
    link: float
    """Bytes per second to another device of the same host."""
    reduce: float
    """Seconds of an all-reduce of a few kilobytes within the host."""
    driver: DriverCosts | None = None
    """None: not known, as for a CPU."""


@cache
def built_in() -> Mapping[str, Device]:
    text = files("ssd.planning").joinpath("data/hardware.toml").read_text()
    return {key: _device(key, row) for key, row in tomllib.loads(text).items()}


def called_like(name: str) -> Device | None:
    """The built-in device whose key is part of the driver's `name`; the longest key wins."""
    plain = name.lower().replace(" ", "")
    keys = sorted((key for key in built_in() if key in plain), key=len)
    return built_in()[keys[-1]] if keys else None


def published_launch() -> float:
    """Seconds for each kernel of a step, the host's part included, by the table's one profile."""
    drivers = (each.driver for each in built_in().values())
    return next(each.profiled for each in drivers if each is not None and each.profiled is not None)


def find_device(name: str) -> Device:
    """A device by its name in the table, or from a TOML file (`FILE:KEY` if it has several)."""
    known = built_in()
    if name.lower() in known:
        return known[name.lower()]
    path, _, key = name.partition(":")
    if Path(path).suffix == ".toml":
        return _from_file(Path(path), key)
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    raise ValueError(f"no device {name!r}: {hint}; or name a .toml file with {', '.join(_FIELDS)}")


def _from_file(path: Path, key: str) -> Device:
    try:
        rows = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: check the path, or see `ssd plan --list`") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML ({error}): write a [name] and its figures") from error
    if not key and len(rows) != 1:
        raise ValueError(f"{path} has {len(rows)} devices: say which as {path}:NAME")
    if key and key not in rows:
        raise ValueError(f"{path} has no device {key!r}: it has {', '.join(rows)}")
    key = key or next(iter(rows))
    return _device(key, rows[key])


def _device(key: str, row: Mapping[str, Any]) -> Device:
    missing = [name for name in _FIELDS if name not in row]
    if missing:
        raise ValueError(
            f"device {key!r} does not say its {missing[0]!r}: see data/hardware.toml for the units"
        )
    return Device(
        name=str(row.get("name", key)),
        bandwidth=row["bandwidth"] * 1e9,
        flops=row["flops"] * 1e12,
        memory=row["memory"] * 1e9,
        link=row["link"] * 1e9,
        reduce=row["reduce"] * 1e-6,
        driver=_driver(row["driver"]) if "driver" in row else None,
    )


def _driver(row: Mapping[str, Any]) -> DriverCosts:
    return DriverCosts(
        **{name: row[name] * 1e-6 for name in ("launch", "replay", "node", "copy", "wait")},
        pcie=row["pcie"] * 1e9,
        share=row["share"],
        profiled=row["profiled"] * 1e-6 if "profiled" in row else None,
    )
