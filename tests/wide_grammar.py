"""A grammar whose masks are expensive: many rules that fit the same texts."""


def wide_grammar(num_rules: int, form: str, number: int = 0) -> str:
    """Lark text; `number` makes it differ from others, so that no cache knows it."""
    rules = [f"n{i}: /[a-z ]{{1,{i + 2}}}/" for i in range(num_rules)]
    either = " | ".join(f"n{i}" for i in range(num_rules))
    return "\n".join([form.format(either), *rules, f"// {number}"])
