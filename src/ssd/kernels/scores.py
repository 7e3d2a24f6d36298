"""z/T + g for a block of a vocabulary, like `sampling/whole.py`. Called by kernels only."""

from ssd.kernels.language import jit, tl
from ssd.kernels.noise import murmur_of_tokens, noise_of_run, noise_of_tokens


@jit()
def block_of_scores(
    logits,
    temperatures,
    seeds,
    positions,
    floors,
    head_tokens,
    is_murmur,
    row,
    row_stride,
    num_columns,
    block: tl.constexpr,
    has_floors: tl.constexpr,
    has_head_tokens: tl.constexpr,
    has_murmur: tl.constexpr,
):
    """Columns and scores of this program's block; −inf for truncated tokens and padding."""
    first = tl.program_id(1) * block
    columns = first + tl.arange(0, block)
    is_column = columns < num_columns
    scores = tl.load(logits + row * row_stride + columns, mask=is_column, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures + row)
    if temperature != 0.0:
        # IEEE rounding: a plain division may differ in the last bit.
        scores = tl.div_rn(scores, tl.zeros([block], tl.float32) + temperature)
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        tokens = columns
        if has_head_tokens:
            tokens = tl.load(head_tokens + columns, mask=is_column, other=0)
            noise = noise_of_tokens(seed, position, tokens)
        else:
            noise = noise_of_run(seed, position, first, block)
        if has_murmur:  # noqa: SIM102 (decided when the kernel is compiled)
            if tl.load(is_murmur + row):
                noise = murmur_of_tokens(seed, position, tokens)
        if has_floors:
            kept = scores >= tl.load(floors + row)
            scores = tl.where(kept, scores + noise, float("-inf"))
        else:
            scores = scores + noise
    return columns, scores


@jit()
def best_of(scores, columns, num_columns):
    """The largest score and its column; the lowest column wins a tie; 0 if all scores are NaN."""
    best = tl.max(scores, 0)
    column = tl.min(tl.where((scores == best) & (columns < num_columns), columns, 2147483647), 0)
    return best, tl.where(column == 2147483647, 0, column)


@jit()
def log_sum(scores):
    """log-sum-exp; −inf if all scores are."""
    top = tl.max(scores, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(scores - base), 0)
    return tl.where(total == 0.0, float("-inf"), base + tl.log(tl.where(total == 0.0, 1.0, total)))
