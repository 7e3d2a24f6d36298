"""A stand-in for a GPU: vLLM's V2 model runner on CPU tensors; Triton's interpreter runs its kernels.

    PYTHONPATH=tests/vllm/bed:. TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python …

Python imports this file at its start, in vLLM's child processes too. What it changes in vLLM and Triton, each
right after the module was imported:

- Triton has a backend named `cpu`, without which vLLM's build for CPUs does not use Triton. It compiles
  nothing: the interpreter runs every kernel.
- Sampling with noise and dividing by temperatures do without the interpreter (`sampling.py`).
- Penalties, grammars and log-probabilities launch their kernels with one block for a row of logits instead of
  one for 1,024 or 8,192 tokens, because the interpreter's time grows with the number of blocks.
- top-k and top-p are vLLM's torch form: the interpreter cannot run that kernel.
- The interpreter takes masks that are whole numbers for truth values, and does not check integers for
  overflow, both as compiled kernels do. It prepares `triton.language` once instead of in each call.
- Asynchronous scheduling stays on where it is asked for; vLLM switches it off for CPUs.
- SSD's controller proposes all tokens of a draft: by the interpreter's times drafting would never pay.

Shows the real runner, sampler, scheduler and queues; nothing of streams, graphs, compiled kernels and speed.
"""

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_BLOCKS = re.compile(r"\bBLOCK_SIZE ?= ?(\d+|[A-Z_]+_BLOCK_SIZE)")
"""A number, or a constant of the module."""


def _name_a_backend(backends: Any) -> None:
    class Driver:
        @staticmethod
        def is_active() -> bool:
            return False

    backends.backends["cpu"] = backends.Backend(compiler=None, driver=Driver)


def _sample_by_numpy(gumbel: Any) -> None:
    from tests.vllm.bed.sampling import replace_kernels

    _launch_whole_rows(gumbel, gumbel, "gumbel_sample")
    replace_kernels(gumbel)


def _launch_whole_rows(module: Any, owner: Any, *names: str) -> None:
    """In functions of a module, or of a class of it."""
    for name in names:
        source = textwrap.dedent(inspect.getsource(vars(owner)[name]))
        changed = _BLOCKS.sub("BLOCK_SIZE = triton.next_power_of_2(logits.shape[-1])", source)
        if changed == source:
            raise ImportError(f"{name} of this vLLM has other blocks: change tests/vllm/bed")
        found: dict[str, Any] = {}
        exec(changed, vars(module), found)
        setattr(owner, name, found[name])


def _penalise_whole_rows(penalties: Any) -> None:
    _launch_whole_rows(penalties, penalties, "apply_penalties")


def _log_whole_rows(logprob: Any) -> None:
    _launch_whole_rows(logprob, logprob, "compute_token_logprobs", "compute_topk_scores")


def _mask_whole_rows(outputs: Any) -> None:
    _launch_whole_rows(outputs, outputs.StructuredOutputsWorker, "apply_grammar_bitmask")


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


def _change_interpreter(interpreter: Any) -> None:
    _make_masks_boolean(interpreter)
    # Three times as many operations as without these checks; compiled kernels have none.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    _patch_language_once(interpreter)
    _look_types_up_once(interpreter)


def _patch_language_once(interpreter: Any) -> None:
    """The interpreter replaces functions of `triton.language` in each call, and puts them back after it."""
    patch = interpreter._patch_lang

    class Kept:
        @staticmethod
        def restore() -> None: ...

    @functools.cache
    def patched(function: Any) -> Kept:
        patch(function)
        return Kept()

    interpreter._patch_lang = patched


def _look_types_up_once(interpreter: Any) -> None:
    stock = interpreter._get_np_dtype
    of_number = functools.cache(stock)

    def numpy_type(its_type: Any) -> Any:
        scalar = its_type.scalar
        return stock(scalar) if scalar.is_ptr() else of_number(scalar)

    interpreter._get_np_dtype = numpy_type


def _propose_everything(controller: Any) -> None:
    def choose(self: Any, chances: Sequence[Sequence[float]], num_rows: int) -> list[int]:
        return [len(each) for each in chances]

    controller.Controller.choose = choose


def _stay_asynchronous(platform: Any) -> None:
    stock = platform.CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        stock(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    platform.CpuPlatform.check_and_update_config = classmethod(check)


CHANGES: dict[str, Callable[[Any], None]] = {
    "triton.backends": _name_a_backend,
    "vllm.v1.worker.gpu.sample.gumbel": _sample_by_numpy,
    "vllm.v1.worker.gpu.sample.penalties": _penalise_whole_rows,
    "vllm.v1.worker.gpu.sample.logprob": _log_whole_rows,
    "vllm.v1.worker.gpu.structured_outputs": _mask_whole_rows,
    "vllm.v1.sample.ops.topk_topp_sampler": _truncate_by_torch,
    "triton.runtime.interpreter": _change_interpreter,
    "vllm.platforms.cpu": _stay_asynchronous,
    "ssd.draft.client.controller": _propose_everything,
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
