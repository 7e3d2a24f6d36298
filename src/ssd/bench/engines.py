"""Runs all cases of a run on one target, which is loaded once.

Knows how cases become decoders, and which cores each uses. A draft that works ahead has its own process on
the draft's cores; copies of drafts for bare forwards are in bare.py. The prefix cache is off, since it would
favour cases that run a prompt later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import TracebackType

from ssd.bench.cases import Case, refuse_cases, with_case
from ssd.bench.meter import BatchMeter
from ssd.bench.records import PromptRecord
from ssd.config import DraftConfig, EngineConfig
from ssd.decoding.decoder import Decoder
from ssd.engine.build import Engine, build_engine, make_decoder, refuse_another_tokenizer
from ssd.engine.drafting import with_own_cores
from ssd.engine.prompts import Prompt
from ssd.models.checkpoint import open_checkpoint
from ssd.models.hub import local_model, with_local_models
from ssd.models.weights import ShowProgress
from ssd.processes.other_load import OtherLoad
from ssd.runtime.cores import move_to_cores, usable_cores
from ssd.sampling import SamplingParams

_LONGEST = 4096
"""Default of max_model_len: every draft needs memory for it too."""
_WARM_UP_TOKENS = 8


def bench_configs(
    config: EngineConfig, draft: DraftConfig | None, cases: Sequence[Case]
) -> tuple[EngineConfig, DraftConfig | None]:
    """The settings of target and draft that all cases share, with cores, and sized for the largest batch."""
    refuse_cases(config, draft, cases)
    config = with_local_models(config)
    if draft is not None:
        draft = replace(draft, model=local_model(draft.model, hf_cache=config.hf_cache))
    longest = min(_LONGEST, open_checkpoint(config.model).config.max_position)
    config = replace(
        config,
        enable_prefix_caching=False,
        max_num_seqs=max(case.batch_size for case in cases),
        max_model_len=config.max_model_len or longest,
    )
    if draft is None or all(case.mode != "ssd" for case in cases):
        return config, draft
    ahead = with_own_cores(replace(config, mode="ssd", draft=draft))
    return replace(config, cores=ahead.cores), ahead.draft


class CaseEngines:
    """One target, and a decoder for each case: `with CaseEngines(…) as engines: engines.run(case, …)`.

    `config` is the target's (mode `ar`); `draft` holds the defaults for every case's draft.
    """

    def __init__(
        self,
        config: EngineConfig,
        draft: DraftConfig | None,
        cases: Sequence[Case],
        *,
        show_progress: ShowProgress = False,
    ) -> None:
        self.config, self.draft = bench_configs(config, draft, cases)
        # Check all cases before loading anything.
        configs = {case: self.config_of(case) for case in cases}
        for each in configs.values():
            refuse_another_tokenizer(each)
        num_trees = max(each.num_trees for each in configs.values())
        self.engine: Engine = build_engine(self.config, num_trees=num_trees, show_progress=show_progress)
        self._plain = self.engine.core.decoder
        self._decoders: dict[EngineConfig, Decoder] = {}
        self._cores = self.config.cores
        try:
            for each in configs.values():
                self._decoder_of(each)
        except BaseException:
            self.close()
            self.engine.close()
            raise

    def __enter__(self) -> "CaseEngines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def draft_cores(self) -> tuple[int, ...]:
        """Cores of a draft that works ahead; empty: it has no cores of its own."""
        return () if self.draft is None else self.draft.cores

    def refuse_long(self, prompts: Iterable[str], max_tokens: int) -> None:
        """ValueError if a prompt is too long for its answer: raised before anything is measured."""
        most = self.engine.loaded.max_model_len - max_tokens
        longest = max(len(self.engine.requests.tokenizer(prompt).input_ids) for prompt in prompts)
        if longest > most:
            raise ValueError(
                f"a prompt has {longest} tokens, but with {max_tokens} tokens to generate at most {most} "
                "fit: raise --max-model-len"
            )

    def warm_up(self, cases: Sequence[Case], prompt: str) -> None:
        """Generates a few tokens in each case, so that kernels, caches and calibrations are warm."""
        for case in cases:
            self.run(case, [prompt] * case.batch_size, max_tokens=_WARM_UP_TOKENS, seed=0)

    def run(self, case: Case, prompts: Sequence[Prompt], *, max_tokens: int, seed: int) -> list[PromptRecord]:
        """Runs the prompts as one batch, each up to max_tokens. Their seeds count up from `seed`."""
        self._move_to(self._cores_of(case))
        core, requests = self.engine.core, self.engine.requests
        core.use(self._decoder_of(self.config_of(case)))
        batch = [
            requests.request(
                prompt,
                SamplingParams(
                    temperature=case.temperature, seed=seed + index, max_tokens=max_tokens, ignore_eos=True
                ),
            )
            for index, prompt in enumerate(prompts)
        ]
        load = OtherLoad((*self.config.cores, *self.draft_cores))
        try:
            records = BatchMeter(core).run(batch)
            others = load.share()
            return [replace(each, other_load=others) for each in records]
        finally:
            self._move_to(self.config.cores)

    def config_of(self, case: Case) -> EngineConfig:
        """The case's settings without batch size and temperature: cases that differ only in these share a
        decoder."""
        return with_case(self.config, case, self.draft)

    def num_devices(self, case: Case) -> int:
        """Number of GPUs, or of cores if there is no GPU, that the case uses."""
        on_cpu = self.engine.loaded.pool.shape.device.type == "cpu"
        if on_cpu:
            cores = self._cores_of(case) or tuple(usable_cores())
            return len({*cores, *(self.draft_cores if case.mode == "ssd" else ())})
        draft = self.draft if case.mode == "ssd" else None
        return 1 + (draft is not None and draft.device not in ("auto", self.config.device))

    def close(self) -> None:
        """Ends the drafts. A case that runs again starts its own again: not all need be there at once."""
        for decoder in self._decoders.values():
            decoder.proposer.close()
        self._decoders.clear()

    def _cores_of(self, case: Case) -> tuple[int, ...]:
        return (*self.config.cores, *self.draft_cores) if case.all_cores else self.config.cores

    def _move_to(self, cores: tuple[int, ...]) -> None:
        if cores != self._cores:
            move_to_cores(cores)
            self._cores = cores

    def _decoder_of(self, config: EngineConfig) -> Decoder:
        if config.mode == "ar":
            return self._plain
        if config not in self._decoders:
            self._decoders[config] = make_decoder(config, self.engine.loaded, self.engine.requests.tokenizer)
        return self._decoders[config]
