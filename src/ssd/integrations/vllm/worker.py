"""The class for `--worker-cls`: vLLM's own worker with a draft client and coupled acceptance.

    execute_model          tells the draft which requests begin and end; reads its nodes during the forward
    sample_tokens          reads nodes until the tokens are there; sends the tokens to the draft
    take_draft_token_ids   gives the draft's best known paths to vLLM's scheduler

Extends vLLM's worker for CPU or GPU; `runner_v1.py` and `runner_v2.py` hold what depends on its model runner.
Only the rank whose tokens vLLM reads connects to the draft. Errors in drafting pause drafting and do not
affect requests.
"""

# isort: off
import ssd.integrations.vllm.present  # noqa: F401  # says how to get vLLM, before anything else fails

# isort: on
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import vllm
from vllm.distributed.parallel_state import get_world_group
from vllm.platforms import current_platform
from vllm.v1.outputs import DraftTokenIds

from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.contract import why_untested
from ssd.integrations.vllm.drafting import Drafting, Result
from ssd.integrations.vllm.fitting import checked_settings, installed_version, output_rank, worker_base
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.opening import Opening, hello_of
from ssd.integrations.vllm.sessions import ScheduledStep, Sessions

logger = logging.getLogger(__name__)


class SSDWorker(worker_base(current_platform)):  # type: ignore[misc]  # known only where vLLM runs
    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._settings = checked_settings(vllm_config, Path(vllm.__file__).parent)
        self._drafting: Drafting | None = None
        """None if this rank or this vLLM does not draft."""
        self._step: ScheduledStep | None = None
        super().__init__(vllm_config, *args, **kwargs)
        if self.rank == 0 and (warning := why_untested(installed_version())):
            logger.warning(warning)

    def init_device(self) -> None:
        super().init_device()
        # Instance ids differ between nodes, but all ranks must sample with the same seeds.
        own = self._settings.salt or self.vllm_config.instance_id
        self._rows = BatchRows(get_world_group().broadcast_object(own, src=0))
        self._patch = self._runner_patch()
        self._patch.device_ready()

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        super().load_model(load_dummy_weights=load_dummy_weights)
        self._patch.model_loaded()

    def compile_or_warm_up_model(self) -> Any:
        """Drafting begins after vLLM's warm-up, whose requests must open no sessions."""
        times = super().compile_or_warm_up_model()
        self._start_drafting()
        return times

    def execute_model(self, scheduler_output: Any) -> Any:
        self._rows.follow(scheduler_output)
        if self._drafting is not None:
            self._drafting.resume()
        self._step = self._draft(lambda sessions: sessions.begin(scheduler_output))
        output = super().execute_model(self._patch.prepare_step(scheduler_output))
        # The GPU is computing now.
        self._draft(Sessions.take_in)
        return output

    def sample_tokens(self, grammar_output: Any) -> Any:
        step = self._step
        output = super().sample_tokens(grammar_output)
        if self._drafting is None:
            return output
        take_in = None if step is None else partial(self._draft, Sessions.take_in)
        return self._patch.finish_step(output, partial(self._settle, step), take_in)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        if self._patch.is_async:
            return super().take_draft_token_ids()
        proposed = self._draft(Sessions.propose)
        if proposed is None or not proposed[0]:
            return None
        return DraftTokenIds(req_ids=proposed[0], draft_token_ids=proposed[1])

    def shutdown(self) -> None:
        if self._drafting is not None:
            self._drafting.close()
        super().shutdown()

    def ssd_report(self) -> dict[str, float] | None:
        """Counts since the start, from the rank that has them; by `collective_rpc`."""
        return None if self._drafting is None else self._drafting.report()

    def ssd_attach(self) -> None:
        if self._drafting is not None:
            self._drafting.attach()

    def ssd_detach(self) -> None:
        """Requests run without the draft until it is attached again."""
        if self._drafting is not None:
            self._drafting.detach()

    def _runner_patch(self) -> Any:
        if self.vllm_config.use_v2_model_runner:
            from ssd.integrations.vllm.runner_v2 import AsyncV2RunnerPatch, V2RunnerPatch

            if self.vllm_config.scheduler_config.async_scheduling:
                return AsyncV2RunnerPatch(self.model_runner, self._rows, self._settings, self._draft)
            return V2RunnerPatch(self.model_runner, self._rows, self._settings)
        from ssd.integrations.vllm.runner_v1 import V1RunnerPatch

        return V1RunnerPatch(self.model_runner, self._rows, self._settings)

    def _start_drafting(self) -> None:
        parallel = self.vllm_config.parallel_config
        if self._settings.draft is None or self.rank != output_rank(parallel):
            return
        if parallel.pipeline_parallel_size > 1:
            # With several steps in flight, vLLM asks for proposals before it has processed their tokens.
            logger.warning("nothing is drafted across pipeline stages: requests run plainly")
            return
        try:
            # Now, not in a step: loading a tokenizer takes long, and requests would wait for it.
            hello = hello_of(self.vllm_config.model_config)
        except Exception:
            logger.exception("nothing is drafted: the target's tokenizer could not be loaded")
            return
        opening = Opening(
            self.vllm_config,
            hello,
            self._settings,
            self._rows,
            self._patch.noise,
            Meter(),
            is_v2=self.vllm_config.use_v2_model_runner,
            is_async=self._patch.is_async,
        )
        self._drafting = Drafting(opening.open_sessions, opening.meter)
        self._drafting.resume()

    def _settle(
        self,
        step: ScheduledStep | None,
        output: Any,
        num_proposed: Callable[[], Mapping[str, int]] | None,
    ) -> None:
        def settle(sessions: Sessions) -> None:
            counts = None if num_proposed is None else num_proposed()
            sessions.settle(output.req_ids, output.sampled_token_ids, step, counts)

        # Stages of a pipeline other than the last have no tokens. Without a step drafting was paused when it
        # began: its requests have no session, or one that was opened later.
        if step is not None and getattr(output, "req_ids", None):
            self._draft(settle)

    def _draft(self, work: Callable[[Sessions], Result]) -> Result | None:
        return None if self._drafting is None else self._drafting.do(work)
