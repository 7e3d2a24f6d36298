"""What the worker changes in vLLM's V1 model runner: our samplers decide every token.

V1 samples with a generator for each request, which no draft can follow. So requests reach it without seeds,
and the samplers of `sampler.py` decide tokens by seed and position, with the noise `philox`.
"""

from typing import Any

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.requests import with_seeds
from ssd.integrations.vllm.settings import Settings


class V1Runner:
    noise = "philox"

    def __init__(self, runner: Any, rows: BatchRows, settings: Settings) -> None:
        self._runner, self._rows, self._is_coupled = runner, rows, settings.coupled

    def device_ready(self) -> None:
        if self._is_coupled:
            from ssd.integrations.vllm.sampler import couple

            couple(self._runner, self._rows)

    def model_loaded(self) -> None:
        """Nothing to change."""

    def scheduled(self, scheduler_output: Any) -> Any:
        """The scheduler's output as vLLM's runner gets it."""
        if not self._is_coupled:
            return scheduler_output
        return with_seeds(scheduler_output, lambda _request_id, _seed: None)

    def decided(self, output: Any) -> Any:
        """A step's output, with its tokens."""
        return output
