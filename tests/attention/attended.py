"""Attention over queries and keys as they are: a rotation of 0."""

import torch
from torch import Tensor

from ssd.attention.backend import AttentionPlan
from ssd.attention.rotation import Rotation


def attended(plan: AttentionPlan, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    rotation = Rotation.none(len(queries), queries.shape[-1], queries.device)
    return plan.attend(layer, torch.cat((queries, keys), dim=1), values, rotation)
