"""Settings of engine, draft and server: frozen dataclasses, validated on creation.

Each setting is declared once (schema.py); unknown keys are errors. Settings of the draft are in
`EngineConfig.draft`. Does not know models, devices or files: whether a value suits a model is checked when
the model is loaded.
"""

from ssd.config.draft import DEFAULT_WIDTH, MAX_CHILDREN, MAX_WIDTH, DraftConfig, GrowthPolicyName
from ssd.config.engine import (
    DEFAULT_LOOKAHEAD,
    MAX_LOOKAHEAD,
    TREE_SIZE,
    TREES_PER_STEP,
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
    "Backup",
    "DType",
    "DraftConfig",
    "EngineConfig",
    "GrowthPolicyName",
    "Mode",
    "Precision",
    "RunnerConfig",
]
