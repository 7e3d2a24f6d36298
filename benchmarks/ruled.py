"""A rule that stands for both models: what is left to time is the engine's own work.

Knows logits, greetings and a scheduler; not who asks. Everyone can compute the text, but a draft errs
after every tenth token.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from ssd.attention.inputs import SequenceInput
from ssd.config import GrowthPolicyName
from ssd.draft.protocol.messages import PROTOCOL_VERSION, Hello
from ssd.draft.server.device_steps import BUCKETS, DeviceModel, DeviceParts, DeviceSteps
from ssd.draft.server.host_steps import HostSteps
from ssd.draft.server.scheduler import DraftScheduler, HostLimits
from ssd.draft.tree.arrays import NumpyArrays, TorchArrays
from ssd.draft.tree.children import FixedChildren, LooseChildren, SamplingNeeds
from ssd.draft.tree.forest import Forest
from ssd.draft.tree.model import ForestModel, PrefillChunk
from ssd.draft.tree.tables import Moves, Shape, Tables, TreeRows
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.capture import Capture

CPU = torch.device("cpu")
VOCAB, BLOCK, NUM_BLOCKS = 400, 16, 8192
WIDTH, LOOKUP, SLOTS, CONTEXT = 64, 4, 64, 4096


def prompt_of(index: int) -> list[int]:
    return [2 + (index * 5 + place) % (VOCAB - 2) for place in range(32)]


def logits_of(rows: Sequence[SequenceInput], *, errs: bool) -> Tensor:
    tokens = [token for row in rows if row.num_logits for token in row.tokens[-row.num_logits :]]
    return logits_after(torch.tensor(tokens, dtype=torch.long), errs=errs)


def logits_after(tokens: Tensor, *, errs: bool) -> Tensor:
    following = (31 * tokens + 7) % (VOCAB - 2) + 2
    guessed = torch.where(tokens % 10 == 0, (following + 1) % VOCAB, following) if errs else following
    logits = torch.zeros(len(tokens), VOCAB, device=tokens.device)
    logits.scatter_(1, guessed.unsqueeze(1), 9.0)
    logits.scatter_add_(1, following.unsqueeze(1), torch.full((len(tokens), 1), 5.0, device=tokens.device))
    return logits


def outcome(last: int, drafted: Sequence[int]) -> list[int]:
    """What a target decides by the rule, after a token and a path that was drafted."""
    tokens = [(31 * last + 7) % (VOCAB - 2) + 2]
    for guess in drafted:
        if guess != tokens[-1]:
            break
        tokens.append((31 * tokens[-1] + 7) % (VOCAB - 2) + 2)
    return tokens


def hello(name: str) -> Hello:
    return Hello(PROTOCOL_VERSION, "a rule", VOCAB, name, uuid.uuid4().hex, 4096)


class RuledModel:
    """In place of a draft's model: the rule for each row, and no keys."""

    num_columns = VOCAB

    def forward(self, rows: TreeRows, tables: Tables, chunks: Sequence[PrefillChunk]) -> Tensor:
        return logits_after(torch.from_numpy(rows.token[rows.attaches]), errs=True)

    def read(self, chunks: Sequence[PrefillChunk]) -> None:
        pass

    def logits(self, rows: TreeRows, tables: Tables) -> Tensor:
        return logits_after(rows.token, errs=True)

    def move(self, moves: Moves) -> None:
        pass


def host_steps(model: ForestModel, shape: Shape) -> HostSteps:
    """As a draft service has them on a CPU."""
    return HostSteps(Forest(NumpyArrays(), shape), model, LooseChildren(shape.children))


def device_steps(
    model: DeviceModel,
    shape: Shape,
    capture: Capture,
    *,
    device: torch.device = CPU,
    head_tokens: Tensor | None = None,
    policy: GrowthPolicyName = "value",
    depth: int = 1,
    buckets: Sequence[int] = BUCKETS,
) -> DeviceSteps:
    """As a draft service has them on a GPU, by torch."""
    xp = TorchArrays(device)
    plain, truncating = (
        FixedChildren(shape.children, SamplingNeeds(samples=True, truncates=each), head_tokens, device=device)
        for each in (False, True)
    )
    parts = DeviceParts(
        device,
        lambda rows, tables: Forest(xp, rows, policy, tables),
        model,
        plain,
        truncating,
        head_tokens,
        capture,
    )
    return DeviceSteps(parts, shape, depth=depth, buckets=buckets)


def shape_of(batch: int, lookahead: int, *, width: int = WIDTH, slots: int = SLOTS) -> Shape:
    return Shape(
        batch,
        width,
        rows=width + batch * (lookahead + 1),
        lookup=LOOKUP,
        slots=slots,
        outcome=lookahead + 1,
        block=BLOCK,
        blocks=CONTEXT // BLOCK,
        first_tree_slot=NUM_BLOCKS * BLOCK,
    )


def scheduler_of(
    model: ForestModel,
    *,
    prefill_chunk: int,
    shape: Shape | None = None,
    weights: Mapping[str, float] = MappingProxyType({}),
    clock: Callable[[], float] = time.monotonic,
    num_blocks: int = NUM_BLOCKS,
) -> DraftScheduler:
    """As a draft service has it on a CPU."""
    shape = shape or shape_of(64, 8)
    limits = HostLimits(prefill_chunk, CONTEXT, weights)
    blocks = BlockManager(num_blocks, BLOCK)
    return DraftScheduler(host_steps(model, shape), blocks, limits, clock=clock)
