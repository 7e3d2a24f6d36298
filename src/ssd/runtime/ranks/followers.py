"""Processes that follow: started by the one that leads, watched, and ended with it.

A rank that dies takes the others along, whatever they wait for: a collective on a GPU would wait for ever.
Each hangs on a lifeline, so none outlives its leader.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence

import msgspec
import torch

from ssd.config import RunnerConfig
from ssd.processes.child import Child
from ssd.runtime.ranks.group import Ranks, leading_store
from ssd.runtime.ranks.task import Task

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_GRACE = 2.0
"""For the main thread to notice by itself, and to say goodbye."""
EXIT_CODE = 3
"""Of a leader that has lost a rank."""


class Team:
    """The leader and those that follow it."""

    def __init__(self, runners: Sequence[RunnerConfig]) -> None:
        """One for each rank, the leader's first."""
        self.runner = runners[0]
        """The leader's own."""
        self._is_over = threading.Event()
        world_size = len(runners)
        store = leading_store(world_size)
        self._children = [
            Child(
                [sys.executable, "-m", "ssd.runtime.ranks.follower"],
                name=f"rank {rank} of {world_size}",
                first_line=msgspec.json.encode(Task(runner, rank, world_size, store.port)),
                grace=0.5,
            )
            for rank, runner in enumerate(runners[1:], start=1)
        ]
        for child in self._children:
            child.start()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()
        self.ranks = Ranks(0, world_size, store, torch.device(runners[0].device))

    def close(self) -> None:
        self._is_over.set()
        for child in self._children:
            child.end()

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            lost = [each for each in self._children if each.exit_code is not None]
            if lost and not self._is_over.is_set():
                logger.error("%s %s, and all end with it", lost[0].name, lost[0].ending)
                time.sleep(_GRACE)
                self._end_all()

    def _end_all(self) -> None:
        if self._is_over.is_set():
            return
        for child in self._children:
            child.end()
        os._exit(EXIT_CODE)
