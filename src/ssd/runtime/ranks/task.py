"""What a follower is told first. Imports little: it must hang on its lifeline before it loads torch."""

import msgspec

from ssd.config import RunnerConfig


class Task(msgspec.Struct, frozen=True):
    runner: RunnerConfig
    rank: int
    world_size: int
    port: int
    """Of the leader, where ranks find each other."""
