"""Without Triton, which there is for Linux alone, there is nothing to test here."""

from importlib.util import find_spec

if find_spec("triton") is None:
    collect_ignore_glob = ["*"]
