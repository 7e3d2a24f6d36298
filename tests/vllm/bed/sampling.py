"""Two kernels of vLLM's sampler without Triton's interpreter, which needs twenty times as long for them.

Sampling with noise is vLLM's own source, but numpy runs it, on one row after the other: its functions get a
`triton.language` that is made of numpy. Dividing by temperatures is one operation of torch. test_bed.py
compares both with the kernels, bit for bit. Knows no models and no requests.
"""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch


class Block(np.ndarray):
    """As the functions use a tensor of Triton, which no operation changes in place."""

    __imul__ = np.ndarray.__mul__  # type: ignore[assignment]
    __ixor__ = np.ndarray.__xor__  # type: ignore[assignment]

    def to(self, number_type: Any) -> "Block":
        return self.astype(number_type).view(Block)


def _where(condition: Any, one: Any, other: Any) -> Block:
    return np.asarray(np.where(condition, one, other)).view(Block)


def _greatest(values: Block, *, axis: int, return_indices: bool) -> tuple[Any, Any]:
    return np.nanmax(values, axis=axis), np.nanargmax(values, axis=axis)


_LANGUAGE = SimpleNamespace(
    int32=np.int32,
    int64=np.int64,
    uint32=np.uint32,
    uint64=np.uint64,
    float32=np.float32,
    float64=np.float64,
    log=np.log,
    maximum=np.maximum,
    where=_where,
    max=_greatest,
)


class NumpySampling:
    def __init__(self, gumbel: Any) -> None:
        """`gumbel`: the module `vllm.v1.worker.gpu.sample.gumbel`."""
        names = {**vars(gumbel), "tl": _LANGUAGE}
        for name, each in vars(gumbel).items():
            if hasattr(each, "rewriter"):  # A function of the interpreter; `fn` is what vLLM wrote.
                names[name] = FunctionType(each.fn.__code__, names, name, each.fn.__defaults__)
        self._best_of_row = names["gumbel_noised_argmax"]

    def best(
        self,
        logits: torch.Tensor,
        requests: torch.Tensor,
        temperatures: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        *,
        apply_temperature: bool,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the greatest score and its token. `requests`: to which request a row belongs."""
        keys = np.arange(logits.shape[1], dtype=np.int32).view(Block)
        of_rows = (each.numpy() for each in (temperatures[requests].float(), seeds[requests], positions))
        rows = zip(logits.float().numpy(), *of_rows, strict=True)
        found = [
            self._best_of_row(
                row.view(Block),
                keys,
                True,
                _single(seed),
                _single(position),
                temperature,
                IS_DRAFTING=False,
                USE_FP64=False,
                APPLY_TEMPERATURE=apply_temperature,
            )
            for row, temperature, seed, position in rows
        ]
        scores, tokens = zip(*found, strict=True)
        return np.array(scores), np.array(tokens)


def _single(number: Any) -> Block:
    """An array: numpy warns of overflows of its scalars, and hashes overflow."""
    return np.array([number]).view(Block)


def replace_kernels(gumbel: Any) -> None:
    """All but sampling for drafts of vLLM's own, and sampling in float64."""
    gumbel.gumbel_sample = _sampling(gumbel.gumbel_sample, NumpySampling(gumbel))
    gumbel.apply_temperature = apply_temperature


def _sampling(by_kernel: Callable[..., torch.Tensor], by_numpy: NumpySampling) -> Callable[..., torch.Tensor]:
    def gumbel_sample(
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        temperature: torch.Tensor,
        seed: torch.Tensor,
        pos: torch.Tensor,
        apply_temperature: bool,
        is_drafting: bool,
        **rare: Any,
    ) -> torch.Tensor:
        rows = logits, expanded_idx_mapping, temperature, seed, pos
        if is_drafting or any(each is not None and each is not False for each in rare.values()):
            return by_kernel(*rows, apply_temperature, is_drafting, **rare)
        _, tokens = by_numpy.best(*rows, apply_temperature=apply_temperature)
        return torch.from_numpy(tokens)

    return gumbel_sample


def apply_temperature(
    logits: torch.Tensor, expanded_idx_mapping: torch.Tensor, temperature: torch.Tensor
) -> None:
    divisors = temperature[expanded_idx_mapping].float()
    logits.div_(torch.where(divisors == 0.0, 1.0, divisors).unsqueeze(1))
