"""What a form of weights costs in quality, beside float32 of the same file.

    python -m benchmarks.quality MODEL --prompts FILE.jsonl [FILE.jsonl …] [--num-prompts 4] \\
        [--max-tokens 64] [--forms bfloat16 int8] [--cores 0,1] [--record docs/records/quality.jsonl]

Float32 continues each prompt greedily. Then each form reads prompt and continuation, one text after the
other, and the same positions are scored: the mean log-probability of the text's own tokens, and how often the
form's first choice is float32's. Printed: each mean, by float32's, over the prompts' tokens, over the
continuations' and over both. A record gets a line for each form and file of prompts.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.flags import parser
from campaigns.record import Record
from ssd.attention.inputs import PlainInput
from ssd.bench.cases import Case
from ssd.bench.datasets import dataset_label, load_prompts
from ssd.bench.engines import CaseEngines
from ssd.config import DType, EngineConfig, Precision, RunnerConfig
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward

FLAGS = {
    "model:": str, "prompts": ["humaneval.jsonl"], "num-prompts": 4, "max-tokens": 64,
    "forms": ["bfloat16", "int8"], "cores": "", "record": None,
}  # fmt: skip

REFERENCE = "float32"
FORMS: dict[str, tuple[DType, Precision]] = {
    REFERENCE: ("float32", "model"),
    "bfloat16": ("bfloat16", "model"),
    "int8": ("auto", "int8"),
}
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Text:
    tokens: Sequence[int]
    num_prompt: int


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the tokens of a text, each given those before it; the first token has none."""

    log_probs: Tensor
    choices: Tensor
    """The likeliest token at each position."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over the tokens of some texts."""

    tokens: int
    prompt: float
    """Mean log-probability of the prompts' tokens."""
    continuation: float
    both: float
    agreement: float
    """Share of positions at which the first choice is float32's."""


def write_texts(engines: CaseEngines, prompts: Sequence[str], max_tokens: int) -> Iterator[Text]:
    """Each prompt with its greedy continuation; a few at a time, since a forward costs much the same."""
    case, tokenizer = Case(mode="ar", batch_size=_BATCH), engines.engine.requests.tokenizer
    for first in range(0, len(prompts), _BATCH):
        some = prompts[first : first + _BATCH]
        records = engines.run(case, some, max_tokens=max_tokens, seed=0)
        for prompt, record in zip(some, records, strict=True):
            ids = tokenizer(prompt).input_ids
            yield Text((*ids, *record.tokens), len(ids))


@torch.inference_mode()
def score(loaded: LoadedModel, text: Text) -> Scores:
    num_rows = len(text.tokens) - 1
    blocks = list(range(-(-num_rows // loaded.pool.shape.block_size)))
    logits = forward(loaded.runner, [PlainInput(text.tokens[:-1], 0, blocks, num_rows, generated=False)])
    own = torch.tensor(text.tokens[1:])[:, None]
    log_probs = logits.gather(1, own)[:, 0] - torch.logsumexp(logits, dim=1)
    return Scores(log_probs.double(), logits.argmax(dim=1))


def quality(texts: Sequence[Text], scores: Sequence[Scores], reference: Sequence[Scores]) -> Quality:
    prompts, continuations = [], []
    for text, each in zip(texts, scores, strict=True):
        prompts.append(each.log_probs[: text.num_prompt - 1])
        continuations.append(each.log_probs[text.num_prompt - 1 :])
    pairs = zip(scores, reference, strict=True)
    same = torch.cat([one.choices == other.choices for one, other in pairs])
    both = torch.cat([*prompts, *continuations])
    return Quality(
        tokens=len(both),
        prompt=float(torch.cat(prompts).mean()),
        continuation=float(torch.cat(continuations).mean()),
        both=float(both.mean()),
        agreement=float(same.double().mean()),
    )


Scored = dict[str, list[Scores]]
"""By file of prompts."""


def reference_of(options: Namespace, cores: tuple[int, ...]) -> tuple[dict[str, list[Text]], Scored]:
    """The texts, and their scores in float32."""
    dtype, precision = FORMS[REFERENCE]
    config = EngineConfig(model=options.model, device="cpu", dtype=dtype, precision=precision, cores=cores)
    texts: dict[str, list[Text]] = {}
    with CaseEngines(config, None, [Case(mode="ar", batch_size=_BATCH)]) as engines:
        for file in options.prompts:
            prompts = load_prompts(file, None, options.num_prompts)
            texts[dataset_label(file)] = list(write_texts(engines, prompts, options.max_tokens))
        return texts, scored(engines.engine.loaded, texts)


def scores_of(options: Namespace, cores: tuple[int, ...], form: str, texts: dict[str, list[Text]]) -> Scored:
    dtype, precision = FORMS[form]
    config = RunnerConfig(model=options.model, device="cpu", dtype=dtype, precision=precision, cores=cores)
    return scored(load_model(config), texts)


def scored(loaded: LoadedModel, texts: dict[str, list[Text]]) -> Scored:
    return {name: [score(loaded, text) for text in some] for name, some in texts.items()}


def rows_of(texts: dict[str, list[Text]], scores: Scored, reference: Scored) -> dict[str, Quality]:
    """By file of prompts, and of all."""
    found = {name: quality(texts[name], scores[name], reference[name]) for name in texts}
    together = ([each for some in parts.values() for each in some] for parts in (texts, scores, reference))
    return found | {"all": quality(*together)}  # type: ignore[arg-type]


def show(form: str, found: dict[str, Quality], reference: dict[str, Quality]) -> None:
    for name, each in found.items():
        means = (each.prompt, each.continuation, each.both)
        theirs = (reference[name].prompt, reference[name].continuation, reference[name].both)
        cells = " | ".join(
            f"{one:.4f} ({100 * (one / other - 1):+.2f} %)" for one, other in zip(means, theirs, strict=True)
        )
        print(f"| {form} | {name} | {each.tokens} | {cells} | {each.agreement:.2%} |", flush=True)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    cores = tuple(int(each) for each in options.cores.split(",") if each)
    run = {
        "model": Path(options.model).name,
        "num_prompts": options.num_prompts,
        "tokens": options.max_tokens,
    }
    record = None if options.record is None else Record(Path(options.record), run)
    texts, reference = reference_of(options, cores)
    theirs = rows_of(texts, reference, reference)
    print("| form | prompts | tokens | log-probability, prompts | continuations | both | same choice |")
    print("|---|---|---|---|---|---|---|")
    for form in (REFERENCE, *options.forms):
        scores = reference if form == REFERENCE else scores_of(options, cores, form, texts)
        found = rows_of(texts, scores, reference)
        show(form, found, theirs)
        if record is not None:
            for name, each in found.items():
                record.add(f"{form} {name}", asdict(each))


if __name__ == "__main__":
    main()
