"""For pytest under a fault: hypothesis stops at the first failure, and finds the same one each time."""

try:
    from hypothesis import Phase, settings
except ImportError:
    pass  # Beside vLLM there may be none, and then no test that needs it.
else:
    settings.register_profile(
        "faults", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None
    )
    settings.load_profile("faults")
