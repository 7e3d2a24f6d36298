"""Paged key/value memory: who owns which block (pure Python, here) and the tensors behind the blocks.

Importing this package does not import torch.
"""

from ssd.kvcache.block_manager import BlockManager, IntegrityError, OutOfBlocks

__all__ = ["BlockManager", "IntegrityError", "OutOfBlocks"]
