"""The trees of all sequences as tables of fixed shape: a step is a fixed list of operations.

`tables.py` says what is kept, `select.py` which rows a forward computes, `children.py` and `attach.py` what
its logits become, `apply.py` what an outcome does. `arrays.py` has the few operations that torch and numpy
do not share: each step is written once and runs on tensors (captured, on a device) and on arrays (a CPU).
"""
