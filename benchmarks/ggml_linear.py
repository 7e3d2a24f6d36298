"""What a linear layer costs in ggml, by rows, with weights as GGUF files store them.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    taskset -c 0 python -m benchmarks.ggml_linear package/bins/linux-x64 [--cpu sapphirerapids]

Calls ggml's C functions in the libraries of that folder, on one thread; `--cpu` names the build. A kernel
that repacks weights has a buffer type of its own: AMX, CPU_REPACK. Best of many turns, as in linears.py.
"""

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flags import parser
from benchmarks.in_turns import best

FLAGS = {"folder:": Path, "cpu": "sapphirerapids", "outputs": 8960, "inputs": 1536}

ROWS = (1, 5, 9, 16)
FORMS = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
"""ggml's numbers of encodings."""
_FLOAT32 = 0
_REPACKED = {"AMX": FORMS, "CPU_REPACK": ("Q4_0", "Q4_K")}
"""Encodings that a buffer type takes; for others it ends the process."""


class _Memory(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("buffer", c_void_p), ("no_alloc", c_bool))


class Ggml:
    def __init__(self, folder: Path, cpu: str) -> None:
        self._base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self._cpu = ctypes.CDLL(str(folder / f"libggml-cpu-{cpu}.so"))
        self._backend = self.call("ggml_backend_cpu_init", c_void_p)
        self.call("ggml_backend_cpu_set_n_threads", None, c_void_p(self._backend), c_int(1))

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        function = getattr(self._base, name, None) or getattr(self._cpu, name)
        function.restype = result
        return function(*arguments)

    def buffer_types(self) -> Iterator[tuple[str, int]]:
        """Those that repack weights."""
        device = c_void_p(self.call("ggml_backend_get_device", c_void_p, c_void_p(self._backend)))
        registry = c_void_p(self.call("ggml_backend_dev_backend_reg", c_void_p, device))
        name = c_char_p(b"ggml_backend_dev_get_extra_bufts")
        address = self.call("ggml_backend_reg_get_proc_address", c_void_p, registry, name)
        found = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(device)
        index = 0
        while found[index]:
            yield self.call("ggml_backend_buft_name", c_char_p, c_void_p(found[index])).decode(), found[index]
            index += 1

    def context(self) -> c_void_p:
        return c_void_p(self.call("ggml_init", c_void_p, _Memory(size=8 << 20, no_alloc=True)))

    def tensor(self, form: int, data: Any, shape: tuple[int, ...], buffer_type: int) -> c_void_p:
        """A matrix in a context of its own."""
        context = self.context()
        sizes = [c_int64(each) for each in reversed(shape)]
        made = c_void_p(self.call("ggml_new_tensor_2d", c_void_p, context, c_int(form), *sizes))
        self._allocate(context, buffer_type)
        address = c_void_p(data.ctypes.data)
        self.call("ggml_backend_tensor_set", None, made, address, c_size_t(0), c_size_t(data.nbytes))
        return made

    def plain_buffers(self) -> int:
        return int(self.call("ggml_backend_cpu_buffer_type", c_void_p))

    def quantised(self, form: int, weight: Any) -> Any:
        out = np.empty(2 * weight.size, np.uint8)
        shape = [c_int64(each) for each in (0, *weight.shape)]
        addresses = c_void_p(weight.ctypes.data), c_void_p(out.ctypes.data)
        size = self.call("ggml_quantize_chunk", c_size_t, c_int(form), *addresses, *shape, c_void_p(None))
        return out[:size]

    def product(self, weight: c_void_p, x: c_void_p) -> Callable[[], object]:
        context = self.context()
        y = c_void_p(self.call("ggml_mul_mat", c_void_p, context, weight, x))
        graph = c_void_p(self.call("ggml_new_graph", c_void_p, context))
        self.call("ggml_build_forward_expand", None, graph, y)
        self._allocate(context, self.plain_buffers())
        return lambda: self.call("ggml_backend_graph_compute", c_int, c_void_p(self._backend), graph)

    def _allocate(self, context: c_void_p, buffer_type: int) -> None:
        self.call("ggml_backend_alloc_ctx_tensors_from_buft", c_void_p, context, c_void_p(buffer_type))


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    ggml, draw = Ggml(options.folder, options.cpu), np.random.default_rng(0)
    weight = draw.standard_normal((options.outputs, options.inputs)).astype(np.float32)
    print(f"{'ms by rows':24}" + "".join(f"{rows:8}" for rows in ROWS))
    for buffers, buffer_type in ggml.buffer_types():
        for name in (each for each in FORMS if each in _REPACKED.get(buffers, ())):
            stored = ggml.quantised(FORMS[name], weight)
            held = ggml.tensor(FORMS[name], stored, weight.shape, buffer_type)
            times = []
            for rows in ROWS:
                x = draw.standard_normal((rows, options.inputs)).astype(np.float32)
                inputs = ggml.tensor(_FLOAT32, x, x.shape, ggml.plain_buffers())
                times.append(best(ggml.product(held, inputs), within=1.0))
            print(f"{name + ' ' + buffers:24}" + "".join(f"{1e3 * each:8.2f}" for each in times), flush=True)


if __name__ == "__main__":
    main()
