"""Builds an engine from a configuration: model, blocks, decoder and core."""

import random
from dataclasses import dataclass, replace
from typing import Any

from ssd.config import EngineConfig
from ssd.decoding.decoder import Decoder
from ssd.decoding.drafter import Drafter, DraftLimits
from ssd.decoding.in_turns import HOPED_RATE, DraftInTurns
from ssd.decoding.proposer import Proposer
from ssd.decoding.tree_slots import TreeSlots
from ssd.draft.client.controller import Controller
from ssd.engine.core import EngineCore
from ssd.engine.drafting import draft_ahead, with_own_cores, with_own_device
from ssd.engine.grammar import Grammars
from ssd.engine.model_placement import refuse_a_draft_without_room, refuse_without_memory
from ssd.engine.prompts import RequestFactory
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.models.checkpoint import open_checkpoint
from ssd.models.hub import with_local_models
from ssd.models.vocabulary import common_vocabulary
from ssd.models.weights import ShowProgress
from ssd.processes.host_memory import host_memory
from ssd.runtime.cores import move_to_cores, restore_cores_on_error
from ssd.runtime.host import check_machine, free_on_gpus, gpus_here
from ssd.runtime.loading import LoadedModel
from ssd.runtime.ready import load_ready


@dataclass(frozen=True, slots=True)
class Engine:
    core: EngineCore
    requests: RequestFactory
    config: EngineConfig
    loaded: LoadedModel
    blocks: BlockManager
    grammars: Grammars

    def close(self) -> None:
        """Ends the draft, and gives the process all its cores back."""
        self.core.close()
        if self.config.cores:
            move_to_cores(())


def build_engine(
    config: EngineConfig, *, num_trees: int | None = None, show_progress: ShowProgress = False
) -> Engine:
    """Loads the models and starts the draft. If that fails, ends the draft and restores the cores.

    `num_trees`: tree slots for modes that the target will serve later; None: what its own mode needs.
    """
    config = _fitting(config)
    refuse_without_memory(config, host_memory(), gpus_here())
    with restore_cores_on_error():
        return _engine_on_its_cores(config, num_trees=num_trees, show_progress=show_progress)


def _engine_on_its_cores(
    config: EngineConfig, *, num_trees: int | None, show_progress: ShowProgress
) -> Engine:
    runner = config.runner if num_trees is None else replace(config.runner, num_trees=num_trees)
    loaded = load_ready(runner, show_progress=show_progress)
    tokenizer = loaded.checkpoint.tokenizer()
    blocks = BlockManager(
        loaded.pool.shape.num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    end_ids, vocab_size = loaded.checkpoint.end_ids(tokenizer), loaded.checkpoint.config.vocab_size
    grammars = Grammars(tokenizer, end_ids, vocab_size)
    seeds = random.SystemRandom() if config.seed is None else random.Random(config.seed)
    factory = RequestFactory(tokenizer, end_ids, vocab_size, seeds, grammars, loaded.max_model_len)
    # Last, since it may start a process.
    decoder = make_decoder(config, loaded, tokenizer, show_progress=show_progress)
    core = _core_around(decoder, config, loaded, blocks, tokenizer, grammars)
    return Engine(core, factory, config, loaded, blocks, grammars)


def _fitting(config: EngineConfig) -> EngineConfig:
    """The configuration with local models, a draft device and cores; refuses one that cannot work."""
    check_machine(config)
    config = with_local_models(config)
    refuse_another_tokenizer(config)
    return with_own_cores(with_own_device(config))


def refuse_another_tokenizer(config: EngineConfig) -> None:
    """ValueError if the vocabularies of draft and target differ; reads headers only."""
    if (draft := config.own_draft) is not None:
        common_vocabulary(open_checkpoint(config.model), open_checkpoint(draft.model))


def with_mode(engine: Engine, config: EngineConfig, *, show_progress: ShowProgress = False) -> Engine:
    """An engine with the same target and KV cache and another decoder. Closes the old draft on success.

    ValueError if the engine has requests: they depend on their decoder.
    """
    if engine.core.has_work:
        raise ValueError("the mode cannot change while requests run: let them end, or abort them")
    config = _fitting(config)
    refuse_a_draft_without_room(config, free_on_gpus())
    refuse_without_memory(config, host_memory(), gpus_here(), target_is_loaded=True)
    tokenizer = engine.requests.tokenizer
    with restore_cores_on_error():
        decoder = make_decoder(config, engine.loaded, tokenizer, show_progress=show_progress)
    engine.core.close()
    move_to_cores(config.cores)
    core = _core_around(decoder, config, engine.loaded, engine.blocks, tokenizer, engine.grammars)
    return replace(engine, core=core, config=config)


def _core_around(
    decoder: Decoder,
    config: EngineConfig,
    loaded: LoadedModel,
    blocks: BlockManager,
    tokenizer: Any,
    grammars: Grammars,
) -> EngineCore:
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=loaded.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        # In deterministic mode the bits of a token's keys depend on whether it was prompt or generated.
        cache_generated=not config.deterministic,
    )
    return EngineCore(decoder, blocks, limits, tokenizer, grammars=grammars.constraints)


def make_decoder(
    config: EngineConfig, target: LoadedModel, tokenizer: Any, *, show_progress: ShowProgress = False
) -> Decoder:
    """The decoder of the mode, with its draft, for a loaded target."""
    tree_slots = _tree_slots(config, target)
    num_trees = 0 if tree_slots is None else len(tree_slots.starts)
    match config.mode:
        case "ar":
            return Decoder(target.runner)
        case "sd":
            proposer = _draft_in_turns(config, target, num_trees, show_progress=show_progress)
        case "ssd":
            proposer = draft_ahead(config, target, tokenizer, num_trees=num_trees)
    return Decoder(target.runner, proposer, tree_slots)


def _tree_slots(config: EngineConfig, target: LoadedModel) -> TreeSlots | None:
    """None: only paths are verified. On GPUs, deterministic attention does not support trees."""
    on_gpu = target.pool.shape.device.type != "cpu"
    return (
        None if not config.may_have_trees or (config.deterministic and on_gpu) else TreeSlots.of(target.pool)
    )


def _draft_in_turns(
    config: EngineConfig, target: LoadedModel, num_trees: int, *, show_progress: ShowProgress
) -> Proposer:
    draft = load_ready(config.draft_runner, show_progress=show_progress)
    vocab_size = common_vocabulary(target.checkpoint, draft.checkpoint)
    limits = DraftLimits(config.max_lookahead, draft.max_model_len, config.max_num_batched_tokens, vocab_size)
    blocks = BlockManager(draft.pool.shape.num_blocks, config.block_size, enable_prefix_caching=False)
    drafter = Drafter(draft.runner, blocks, limits, head_tokens=draft.head_tokens)
    controller = Controller(guess_rate=HOPED_RATE) if config.lookahead is None else None
    return DraftInTurns(drafter, controller, num_trees=num_trees)
