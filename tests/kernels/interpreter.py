"""Kernels run in Triton's interpreter in tests: it has to be told before Triton is imported, by whomever."""

import os
from importlib.util import find_spec


def interpret_kernels() -> None:
    """For this process alone: those that it starts see nothing of it."""
    # Beside vLLM no kernel of ours is tested, and those of others are not ours to change.
    if find_spec("triton") is None or find_spec("vllm") is not None:
        return
    os.environ["TRITON_INTERPRET"] = "1"
    import triton

    triton.knobs.runtime.interpret = True
    # Triton writes its settings into the environment as well.
    del os.environ["TRITON_INTERPRET"]
