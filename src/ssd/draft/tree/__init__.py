"""The trees of all sequences as tables of fixed shape, and the steps that change them.

`tables.py` has the data, `select.py` the choice of a forward's rows, `children.py` and `attach.py` turn its
logits into nodes, `apply.py` applies outcomes. Each step is a fixed list of operations, written once. It runs
on tensors (captured, on a GPU) and on numpy arrays (on a CPU); `arrays.py` has the operations that differ.
"""
