"""Devices for a target and its draft, from a list of GPUs."""

from collections.abc import Sequence


def gpu_of(device: str, gpus: Sequence[str]) -> str | None:
    """The GPU that a setting means, by its full name; None: a CPU."""
    if device == "cpu" or (device == "auto" and not gpus):
        return None
    named = "cuda:0" if device in ("auto", "cuda") else device
    if named not in gpus:
        there = f"there are {', '.join(gpus)}" if gpus else "torch sees no GPU"
        raise ValueError(f"device={device!r}, but {there}: name one of these, or 'cpu'")
    return named


def draft_device(asked: str, gpus: Sequence[str], *, target: str | None = None) -> str:
    """The draft's device; `target` is the GPU that the target takes, if it takes one.

    `auto` takes the last GPU that the target leaves, or shares the target's where there is no other.
    """
    if asked not in ("auto", "cuda") or not gpus:
        return gpu_of(asked, gpus) or "cpu"
    others = [gpu for gpu in gpus if gpu != target]
    return (others or gpus)[-1]
