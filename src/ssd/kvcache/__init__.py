"""Paged key/value memory: who owns which block (block_manager.py, no torch) and the tensors (pool.py)."""
