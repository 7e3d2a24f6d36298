"""Our acceptance rule and the published one, on the logits of a real target and a real draft.

    python -m benchmarks.acceptance_rules --model TARGET --draft DRAFT --prompts PROMPTS.jsonl

The target writes texts by sampling. Both models' logits along them give p (target) and q (draft) at each
place, and the place's children: the tokens for which the draft prepares what follows.

- Coupled (ours): the target's token is argmax(z/T + g), where the noise g follows from seed and position. The
  draft knows g too: the children are the tokens with the largest z_draft/T + g. The first is its guess, which
  is accepted if it is the target's token.
- Published (Leviathan et al.; Kumar, Dao, May 2026): the draft samples its guess d from q; other children are
  the likeliest tokens of q without d. The guess is accepted with probability min(1, p/q); a rejected one is
  replaced by a token sampled from max(p − q, 0). Saguaro sampling first multiplies the weights of q's
  likeliest tokens (as many as children) by C: more are rejected, but children replace them more often.

Both rules write texts with distribution p. Nothing is sampled for the published one: given a text's token y
([…] is 1 if true, else 0),

    P(y was accepted)                = min(1, q(y) / p(y))
    P(y is a child | d was rejected) = Σ_d max(q(d) − p(d), 0) [y is beside d] / Σ_d max(q(d) − p(d), 0)
    P(y is a child)                  = Σ_d q(d) [y is d or beside d]

A round verifies `lookahead` guesses, and ends with what replaces the first rejected one, or with one more
token of the target. If that token was a child, the next speculation is ready: a hit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.flags import parser
from ssd.attention.inputs import PlainInput
from ssd.config import RunnerConfig
from ssd.models.vocabulary import common_vocabulary
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import gumbel_noise_at

FLAGS = {
    "model": str, "draft": str, "prompts": str, "num-prompts": 8, "max-tokens": 64, "temperature": 1.0,
    "lookahead": 4, "children": 4, "saguaro": [0.5], "seed": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Chances at one place of a text, given its token; 0 or 1 under coupled acceptance."""

    accepted: float
    hit_if_rejected: float
    hit_if_last: float  # at the place after a speculation that was accepted as a whole


def coupled(target: Tensor, draft: Tensor, noise: Tensor, children: int) -> Place:
    """`target`, `draft`: logits / T of one place."""
    token, guesses = int((target + noise).argmax()), (draft + noise).topk(children).indices.tolist()
    return Place(token == guesses[0], token in guesses[1:], token in guesses)


def published(p: Tensor, draft_probabilities: Tensor, token: int, children: int, factor: float) -> Place:
    """`factor`: Saguaro's C; 1 leaves the draft's distribution as it is."""
    ranked = draft_probabilities.argsort(descending=True)
    q = draft_probabilities.clone()
    q[ranked[:children]] *= factor
    q /= q.sum()
    rank = int((ranked == token).nonzero())
    # Beside d, the likeliest children − 1 tokens are children. d itself leaves its rank to the next.
    beside = torch.zeros_like(q)
    beside[ranked if rank < children - 1 else ranked[: rank * (rank == children - 1)]] = 1
    beside[token] = 0
    rejected = (q - p).clamp(min=0)
    return Place(
        accepted=min(1.0, float(q[token] / p[token])),
        hit_if_rejected=float((rejected * beside).sum() / rejected.sum().clamp(min=1e-300)),
        hit_if_last=float(q[token] + (q * beside).sum()),
    )


def expected(texts: Sequence[Sequence[Place]], lookahead: int) -> tuple[float, float, float, float]:
    """Shares of guesses accepted, of hits after a rejection, of hits; tokens a round."""
    rounds = guesses = accepted = rejected = replaced = hits = 0.0
    for text in texts:
        starts = [1.0] + [0.0] * len(text)
        for first in range(len(text) - lookahead):
            here = starts[first]
            rounds += here
            for place in text[first : first + lookahead]:
                first += 1
                missed = here * (1 - place.accepted)
                guesses, accepted, rejected = guesses + here, accepted + here - missed, rejected + missed
                replaced += missed * place.hit_if_rejected
                starts[first] += missed
                here -= missed
            hits += here * text[first].hit_if_last
            starts[first + 1] += here
    return (
        accepted / guesses,
        replaced / max(rejected, 1e-9),
        (hits + replaced) / rounds,
        1 + accepted / rounds,
    )


def logits_of(model: LoadedModel, tokens: Sequence[int], start: int, num_logits: int) -> Tensor:
    blocks = range(model.pool.shape.num_blocks)
    return forward(model.runner, [PlainInput(tokens, start, blocks, num_logits, generated=start > 0)]).float()


def main() -> None:
    given = parser(__doc__, FLAGS).parse_args()
    target, draft = (
        load_model(
            RunnerConfig(model=each, max_model_len=2048, num_blocks=128, max_num_seqs=1, step_rows=2048)
        )
        for each in (given.model, given.draft)
    )
    size, tokenizer = common_vocabulary(target.checkpoint, draft.checkpoint), target.checkpoint.tokenizer()
    tokens_of = torch.arange(size)
    found: dict[str, list[list[Place]]] = {}
    for line in Path(given.prompts).read_text().splitlines()[: given.num_prompts]:
        prompt = tokenizer(json.loads(line)["text"]).input_ids
        text, rows, noises = list(prompt), list[Tensor](), list[Tensor]()
        unread = text
        for position in range(len(prompt), len(prompt) + given.max_tokens):
            rows.append(logits_of(target, unread, position - len(unread), 1)[0, :size] / given.temperature)
            noises.append(gumbel_noise_at(given.seed, position, tokens_of))
            unread = [int((rows[-1] + noises[-1]).argmax())]
            text += unread
        theirs = logits_of(draft, text[:-1], 0, given.max_tokens)[:, :size] / given.temperature
        pairs = [*zip(rows, theirs, noises, strict=True)]
        found.setdefault("coupled", []).append([coupled(*pair, given.children) for pair in pairs])
        chances = [(z.double().softmax(0), y.double().softmax(0)) for z, y, _noise in pairs]
        for factor in (1.0, *given.saguaro):
            name = "published" if factor == 1 else f"published, Saguaro {factor:g}"
            places = zip(chances, text[len(prompt) :], strict=True)
            found.setdefault(name, []).append(
                [published(p, q, token, given.children, factor) for (p, q), token in places]
            )
    print(
        "| rule | guesses accepted | hits after a rejection | hits | tokens a round |\n|---|---|---|---|---|"
    )
    for name, texts in found.items():
        print("|", " | ".join([name, *(f"{each:.3f}" for each in expected(texts, given.lookahead))]), "|")


if __name__ == "__main__":
    main()
