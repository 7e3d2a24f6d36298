"""The trees of all sequences as tables of fixed shape, and the steps that change them.

`tables.py` has the data and `forest.py` the steps: `select.py` chooses a forward's rows, `children.py` their
children by the logits, `forest.py` attaches these, and `apply.py` applies outcomes. Each step is a fixed list
of operations, written once. It runs on tensors (captured, on a GPU) and on numpy arrays (on a CPU);
`arrays.py` has the operations that differ.
"""
