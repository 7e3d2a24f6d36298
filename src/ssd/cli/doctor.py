"""`ssd doctor`: what is installed, which devices there are, and what would be used."""

import platform
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

from ssd.version import __version__

_PACKAGES = {
    "torch": "tensors",
    "transformers": "configurations, tokenizers",
    "safetensors": "weights",
    "gguf": "GGUF weights",
    "triton": "GPU kernels (extra: gpu)",
    "fastapi": "server (extra: server)",
    "vllm": "production target (extra: vllm)",
}


def doctor() -> None:
    """Show what is installed, what this machine has, and what SSD will use."""
    console = Console()
    console.print(f"[bold]ssd {__version__}[/] on Python {platform.python_version()}, {platform.platform()}")
    console.print(_packages())
    console.print(_machine())


def _packages() -> Table:
    table = Table("package", "version", "for", title="Installed", title_justify="left")
    for name, job in _PACKAGES.items():
        try:
            table.add_row(name, version(name), job)
        except PackageNotFoundError:
            table.add_row(name, "[yellow]not installed[/]", job)
    return table


def _machine() -> Table:
    import torch

    from ssd.models.linear import can_pack
    from ssd.runtime.host import resolve_device, resolve_dtype, usable_cores

    device = resolve_device("auto")
    dtype = resolve_dtype("auto", device)
    table = Table("what", "found", title="This machine", title_justify="left")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        table.add_row(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.device_count():
        table.add_row("GPUs", "none that torch can use")
    table.add_row("CPU cores", ", ".join(map(str, usable_cores())))
    table.add_row("torch threads", str(torch.get_num_threads()))
    table.add_row("CPU instructions", torch.backends.cpu.get_cpu_capability())
    table.add_row("packed bfloat16 linears", "yes" if can_pack() else "no: float32 or plain linears")
    table.add_row("will use", f"[green]{device}[/], [green]{str(dtype).removeprefix('torch.')}[/]")
    return table
