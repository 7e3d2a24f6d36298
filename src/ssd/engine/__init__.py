"""Requests, scheduling and the step loop; `LLM` for scripts."""
