"""The definition of a request's tokens, text and end, implemented independently of the engine.

    y_i = argmax_v ( z_i[v] / T + g(seed, i, v) )

z is one forward of the whole text; noise, processors and grammar are computed in numpy. Rounding may decide a
near-tie otherwise, so a token may be as good as the best, within a tolerance.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import regex  # type: ignore[import-untyped]
from numpy.typing import NDArray

from ssd.attention.inputs import PlainInput
from ssd.engine.outputs import CompletionOutput
from ssd.engine.request import Request
from ssd.runtime.runner import forward
from ssd.sampling import SamplingParams, mix_seed
from tests.exact.engine import BLOCK, TargetWithDrafts
from tests.exact.requests import END, REGEX, SCHEMA
from tests.sampling.reference import reference_edits, reference_truncation, sampling_row

Scores = NDArray[np.float64]
TOLERANCE = 1e-3
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def philox(counter: Sequence[Any], key: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """Philox4x32-10 of Salmon and others, on arrays of 32-bit numbers held in 64 bits."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.asarray(each, np.uint64) for each in counter)
    for number in range(10):
        k0, k1 = ((key[i] + number * (0x9E3779B9, 0xBB67AE85)[i]) & 0xFFFFFFFF for i in range(2))
        one, two = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (two >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            two & low,
            (one >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            one & low,
        )
    return [c0, c1, c2, c3]


def noise(seed: int, position: int, vocab_size: int) -> Scores:
    seed %= 1 << 64
    blocks = np.arange(-(-vocab_size // 4), dtype=np.uint64)
    words = philox((blocks, position, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
    bits = np.stack(np.broadcast_arrays(*words), axis=1).reshape(-1)[:vocab_size]
    return np.asarray(-np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) / 2.0**32)))


class Definition:
    def __init__(self, bench: TargetWithDrafts) -> None:
        self._bench = bench
        self._texts = [bench.tokenizer.decode([token]) for token in range(len(bench.tokenizer))]

    def faults(self, request: Request, output: CompletionOutput) -> list[str]:
        """Where a plain output is not its definition."""
        logits = self._logits(request.prompt_token_ids, output.token_ids)
        wrong = [*self._wrong_tokens(request, output, logits), *_wrong_logprobs(output, logits)]
        return [*wrong, *self._wrong_end(request, output)]

    def wrong_prompt_scores(self, request: Request, found: Sequence[Any] | None) -> list[str]:
        if request.params.prompt_logprobs is None:
            return [] if found is None else ["scores that nobody asked for"]
        first, *rest = request.prompt_token_ids
        logits = self._logits([first], [*rest, 0])[:-1]
        if found is None or len(found) != len(rest) + 1 or found[0] is not None:
            return ["not a score for each prompt token after the first"]
        return [*_wrong_scores(found[1:], rest, logits)]

    def effects(self, request: Request, output: CompletionOutput) -> set[str]:
        """The features without which some token would have been another."""
        without: dict[str, dict[str, Any]] = {
            "temperature": {"temperature": 0.0},
            "truncation": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
            "penalties": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
            "bias": {"logit_bias": None},
            "bad_words": {"bad_words": ()},
            "min_tokens": {"min_tokens": 0},
        }
        logits = self._logits(request.prompt_token_ids, output.token_ids)
        return {
            name
            for name, change in without.items()
            if (params := replace(request.params, **change)) != request.params
            and any(self._wrong_tokens(self._with(request, params), output, logits))
        }

    def _with(self, request: Request, params: SamplingParams) -> Request:
        return replace(request, params=params, bad_word_ids=request.bad_word_ids if params.bad_words else ())

    def _logits(self, prompt: Sequence[int], output: Sequence[int]) -> Scores:
        """One row for each token of the output: what decided it."""
        tokens = [*prompt, *output][:-1] if output else [*prompt]
        blocks = range(-(-len(tokens) // BLOCK))
        whole = PlainInput(tokens, 0, blocks, max(1, len(output)), generated=False)
        return np.asarray(forward(self._bench.loaded.runner, [whole]).float().numpy(), np.float64)

    def _wrong_tokens(self, request: Request, output: CompletionOutput, logits: Scores) -> Iterator[str]:
        params, written = request.params, list[int]()
        if params.grammar is not None and params.grammar.kind == "json_schema":
            return  # What a schema allows is not written once more: its texts must fit it, at their end.
        seed = mix_seed(request.seed, output.index)
        for place, token in enumerate(output.token_ids):
            z = self._processed(request, tuple(written), logits[place])
            if params.temperature:
                z, margin = reference_truncation(z / params.temperature, params)
                z = z + noise(seed, len(request.prompt_token_ids) + place, len(z))
                if margin < TOLERANCE:
                    z[token] = np.inf if z[token] == -np.inf else z[token]
            if not z[token] >= z.max() - TOLERANCE:
                yield f"place {place}: {token} ({z[token]:.4f}), not {z.argmax()} ({z.max():.4f})"
            written.append(token)

    def _processed(self, request: Request, written: tuple[int, ...], logits: Scores) -> Scores:
        """Logits after bias, penalties, forbidden tokens and grammar; the grammar goes before min_tokens."""
        allowed = self._allowed(request.params, written)
        for params in (request.params, replace(request.params, min_tokens=0)):
            row = sampling_row(
                params,
                prompt=request.prompt_token_ids,
                output=written,
                end_ids=(*request.end_ids, *params.stop_token_ids),
                bad_word_ids=request.bad_word_ids,
            )
            z = reference_edits(logits, row)
            z[~allowed] = -np.inf
            if z.max() > -np.inf:
                break
        return z

    def _allowed(self, params: SamplingParams, written: tuple[int, ...]) -> NDArray[np.bool_]:
        if params.grammar is None or params.grammar.kind != "regex":
            return np.ones(self._bench.vocab_size, np.bool_)
        text = self._bench.tokenizer.decode(list(written))
        found = np.zeros(self._bench.vocab_size, np.bool_)
        for token, more in enumerate(self._texts):
            found[token] = bool(more) and regex.fullmatch(REGEX, text + more, partial=True) is not None
        found[0] = False
        found[END] = regex.fullmatch(REGEX, text) is not None
        return found

    def _wrong_end(self, request: Request, output: CompletionOutput) -> Iterator[str]:
        found = (output.finish_reason, output.stop_reason, output.text)
        for count in range(1, len(output.token_ids) + 1):
            expected = self._end(request, output.token_ids[:count])
            if (expected is None) != (count < len(output.token_ids)):
                yield f"{expected} after {count} of {len(output.token_ids)} tokens"
                return
        if output.finish_reason == "error":
            return
        if expected != found:
            yield f"ends as {found}, not as {expected}"
        grammar = request.params.grammar
        if grammar is not None and found[:2] == ("stop", None):
            yield from _misfits(grammar.kind, output.text)

    def _end(self, request: Request, tokens: Sequence[int]) -> tuple[str, int | str | None, str] | None:
        """How a text ends with its latest token: reason, what stopped it, text."""
        params, decode = request.params, self._bench.tokenizer.decode
        text = decode(list(tokens), skip_special_tokens=True)
        before = decode(list(tokens[:-1]), skip_special_tokens=True)
        shown = text if params.include_stop_str_in_output else before
        may_end = len(tokens) >= params.min_tokens
        if may_end and tokens[-1] in params.stop_token_ids:
            return "stop", tokens[-1], shown
        is_end = tokens[-1] in request.end_ids and not params.ignore_eos
        if is_end and (may_end or params.grammar is not None):
            return "stop", None, shown
        is_last = len(tokens) == params.max_tokens
        if may_end and (is_last or not text.endswith(_INCOMPLETE)):
            # Text of tokens before min_tokens was released, and is not searched again.
            searched = len(decode(list(tokens[: max(0, params.min_tokens - 1)])))
            places = [(text.find(each, searched), each) for each in params.stop]
            hits = [(place, each) for place, each in places if place >= 0]
            if hits:
                place, stop = min(hits, key=lambda hit: hit[0])
                kept = place + len(stop) * params.include_stop_str_in_output
                return "stop", stop, text[:kept]
        return ("length", None, text) if is_last else None


def _misfits(kind: str, text: str) -> Iterator[str]:
    if kind == "regex":
        if not regex.fullmatch(REGEX, text):
            yield f"{text!r} does not match {REGEX}"
    else:
        jsonschema.validate(json.loads(text), json.loads(SCHEMA))


def _wrong_logprobs(output: CompletionOutput, logits: Scores) -> Iterator[str]:
    if output.logprobs is not None:
        yield from _wrong_scores(output.logprobs, output.token_ids, logits)


def _wrong_scores(found: Sequence[Any], tokens: Sequence[int], logits: Scores) -> Iterator[str]:
    if [each.token for each in found] != list(tokens):
        yield "log-probabilities of other tokens"
    for each, z in zip(found, logits, strict=False):
        exact = z - z.max() - np.log(np.exp(z - z.max()).sum())
        best = np.sort(exact)[::-1][: len(each.top)]
        values = [each.logprob, *(value for _, value in each.top)]
        expected = [exact[each.token], *(exact[token] for token, _ in each.top)]
        above = (exact > exact[each.token] + TOLERANCE).sum(), (exact > exact[each.token] - TOLERANCE).sum()
        if (
            not np.allclose(values, expected, atol=TOLERANCE)
            or not np.allclose([value for _, value in each.top], best, atol=TOLERANCE)
            or not above[0] < each.rank <= above[1]
        ):
            yield f"scores {each}, not {expected}"
