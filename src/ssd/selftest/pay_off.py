"""Whether SSD pays for two models on GPUs of one kind, by their configurations. Loads nothing."""

from ssd.models.config import ModelConfig
from ssd.planning.deployment import Site, Workload
from ssd.planning.hardware import Device
from ssd.planning.models import ModelSize
from ssd.planning.rounds import Pair
from ssd.planning.verdict import verdict

_ASSUMED = Pair(acceptance=0.8, coverage=0.75)
"""As `ssd plan` assumes."""


def pay_off(
    target: ModelConfig,
    draft: ModelConfig,
    device: Device,
    *,
    num_devices: int,
    has_mps: bool,
    draft_step: float | None = None,
) -> tuple[bool, str]:
    work = Workload(_size("target", target), _size("draft", draft), _ASSUMED)
    site = Site(work, device, device)
    return verdict(site, num_devices=num_devices, has_mps=has_mps, draft_step=draft_step)


def _size(name: str, model: ModelConfig) -> ModelSize:
    table = model.vocab_size * model.hidden_size
    return ModelSize(
        name,
        model.num_parameters + (0 if model.tie_embeddings else table),
        model.num_parameters,
        model.num_layers,
        model.hidden_size,
        2 * model.num_kv_heads * model.head_dim,
    )
