"""What the worker changes in vLLM's V1 model runner: our samplers decide every token.

V1 samples with a generator for each request, which no draft can follow. So requests reach it without seeds,
and the samplers of `sampler.py` decide tokens by seed and position, with the noise `philox`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.settings import Settings

Settle = Callable[[Any, Callable[[], Mapping[str, int]] | None], None]
"""Takes a step's output and, where the device chose them, how to read the number of each request's proposed
tokens."""


class V1RunnerPatch:
    noise = "philox"
    is_async = False

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings) -> None:
        self._runner, self._rows, self._is_coupled = runner, rows, settings.coupled

    def device_ready(self) -> None:
        if self._is_coupled:
            from ssd.integrations.vllm.sampler import couple

            couple(self._runner, self._rows)

    def model_loaded(self) -> None:
        """Nothing to change."""

    def prepare_step(self, scheduler_output: Any) -> Any:
        """The scheduler's output as vLLM's runner gets it."""
        if not self._is_coupled:
            return scheduler_output
        return with_seeds(scheduler_output, lambda _request_id, _seed: None)

    def finish_step(self, output: Any, settle: Settle, take_in: Callable[[], object] | None) -> Any:
        """A step's output; passes its tokens to `settle`."""
        settle(output, None)
        return output
