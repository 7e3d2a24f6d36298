"""For pytest under a fault: hypothesis stops at the first failure, and finds the same one each time."""

from hypothesis import Phase, settings

settings.register_profile("faults", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None)
settings.load_profile("faults")
