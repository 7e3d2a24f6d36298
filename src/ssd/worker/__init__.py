"""The engine in a process of its own, and `AsyncLLM`, its client."""
