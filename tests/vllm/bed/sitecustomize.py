"""A stand-in for a GPU: vLLM's V2 model runner on CPU tensors; Triton's interpreter runs its kernels.

    PYTHONPATH=tests/vllm/bed TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python …

Python imports this file at its start, in vLLM's child processes too. What it changes in vLLM and Triton, each
right after the module was imported:

- Triton has a backend named `cpu`, without which vLLM's build for CPUs does not use Triton. It compiles
  nothing: the interpreter runs every kernel.
- `gumbel_sample` launches its kernel with one block for a row instead of one for 1,024 tokens, because the
  interpreter's time grows with the number of blocks.
- top-k and top-p are vLLM's torch form: the interpreter cannot run that kernel.
- The interpreter takes masks that are whole numbers for truth values, as compiled kernels do.
- Asynchronous scheduling stays on where it is asked for; vLLM switches it off for CPUs.

Shows the real runner, sampler, scheduler and queues; nothing of streams, graphs, compiled kernels and speed.
"""

import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _name_a_backend(backends: Any) -> None:
    class Driver:
        @staticmethod
        def is_active() -> bool:
            return False

    backends.backends["cpu"] = backends.Backend(compiler=None, driver=Driver)


def _launch_whole_rows(gumbel: Any) -> None:
    source = inspect.getsource(gumbel.gumbel_sample)
    changed = source.replace("BLOCK_SIZE = 1024", "BLOCK_SIZE = triton.next_power_of_2(logits.shape[-1])")
    if changed == source:
        raise ImportError("gumbel_sample of this vLLM has other blocks: change tests/vllm/bed")
    exec(changed, vars(gumbel))


def _truncate_by_torch(truncation: Any) -> None:
    truncation.HAS_TRITON = False


def _make_masks_boolean(interpreter: Any) -> None:
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def boolean(mask: Any) -> Any:
        return type(mask)(mask.data.astype(bool), mask.dtype)

    def masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        return load(self, pointers, boolean(mask), *rest)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, pointers, value, boolean(mask), *rest)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _stay_asynchronous(platform: Any) -> None:
    stock = platform.CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    platform.CpuPlatform.check_and_update_config = classmethod(check)


CHANGES: dict[str, Callable[[Any], None]] = {
    "triton.backends": _name_a_backend,
    "vllm.v1.worker.gpu.sample.gumbel": _launch_whole_rows,
    "vllm.v1.sample.ops.topk_topp_sampler": _truncate_by_torch,
    "triton.runtime.interpreter": _make_masks_boolean,
    "vllm.platforms.cpu": _stay_asynchronous,
}


class _ChangingFinder(importlib.abc.MetaPathFinder):
    """Changes each module of `CHANGES` right after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = CHANGES.get(fullname)
        spec = None if change is None else importlib.machinery.PathFinder.find_spec(fullname, path)
        if change is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get("TRITON_INTERPRET") == "1":
    sys.meta_path.insert(0, _ChangingFinder())
