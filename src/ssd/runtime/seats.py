"""Who sits where: devices for a draft and its ranks beside a target, from a list of GPUs. Pure."""

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


def draft_seats(asked: str, ranks: int, gpus: Sequence[str], *, target: str | None = None) -> tuple[str, ...]:
    """A device for each rank of a draft; `target` is the GPU that is taken, if one is.

    `auto` takes GPUs that the target leaves, the last ones; a draft of one rank shares the target's where
    there is no other. Several devices are named with commas.
    """
    if "," in asked:
        return _as_named(asked.split(","), ranks, gpus)
    if asked == "cpu" or not gpus:
        if asked not in ("cpu", "auto"):
            gpu_of(asked, gpus)
        return ("cpu",) * ranks
    if asked not in ("auto", "cuda"):
        if ranks > 1:
            raise ValueError(
                f"draft.device={asked!r} for {ranks} ranks: name as many with commas, or leave it to 'auto'"
            )
        return (gpu_of(asked, gpus) or "cpu",)
    others = [gpu for gpu in gpus if gpu != target]
    if len(others) >= ranks:
        return tuple(others[-ranks:])
    if ranks > 1:
        raise ValueError(
            f"{ranks} ranks of the draft need as many GPUs beside the target's, and {len(others)} are left: "
            "lower draft.tensor_parallel_size"
        )
    return (target or gpus[-1],)


def _as_named(named: Sequence[str], ranks: int, gpus: Sequence[str]) -> tuple[str, ...]:
    found = tuple(gpu_of(each.strip(), gpus) or "cpu" for each in named)
    if len(found) != ranks:
        raise ValueError(
            f"draft.device names {len(found)} devices for {ranks} ranks: name as many as "
            "draft.tensor_parallel_size says"
        )
    return found


def shares_of(cores: Sequence[int], ranks: int) -> list[tuple[int, ...]]:
    """Cores of each rank, as alike as can be; where there are too few, all share them."""
    if len(cores) < ranks:
        return [tuple(cores)] * ranks
    ends = [len(cores) * (rank + 1) // ranks for rank in range(ranks)]
    return [tuple(cores[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
