"""Settings of engine, draft and server: frozen objects, validated once, in which an unknown key is an error.

Each is declared once (schema.py). Nested by owner: what the draft does is `EngineConfig.draft`, what the
target's steps decide is the engine's. Does not know models, devices or files: whether a value fits the model
at hand is checked where the model is loaded.
"""

from ssd.config.draft import DEFAULT_WIDTH, MAX_CHILDREN, MAX_WIDTH, DraftConfig, GrowthPolicyName
from ssd.config.engine import (
    DEFAULT_LOOKAHEAD,
    MAX_LOOKAHEAD,
    TREE_SIZE,
    TREES_PER_STEP,
    Acceptance,
    Backup,
    EngineConfig,
    Mode,
)
from ssd.config.runner import DType, Precision, RunnerConfig

__all__ = [
    "DEFAULT_LOOKAHEAD",
    "DEFAULT_WIDTH",
    "MAX_CHILDREN",
    "MAX_LOOKAHEAD",
    "MAX_WIDTH",
    "TREES_PER_STEP",
    "TREE_SIZE",
    "Acceptance",
    "Backup",
    "DType",
    "DraftConfig",
    "EngineConfig",
    "GrowthPolicyName",
    "Mode",
    "Precision",
    "RunnerConfig",
]
