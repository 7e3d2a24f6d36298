"""The first layers of a GGUF file, as a GGUF file: a real model's shapes, words and quantisation at a
fraction of its cost. What it writes is no sense; what is computed is no less exact for that.
"""

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter


def first_layers(model: Path, num_layers: int, into: Path) -> Path:
    reader = GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(into, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # The writer writes them itself.
        value = num_layers if name == f"{architecture}.block_count" else field.contents()
        kind, *inner = field.types
        writer.add_key_value(name, value, kind, inner[-1] if kind == GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        if _layer(tensor.name) < num_layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return into


def _layer(name: str) -> int:
    """The number of a tensor's layer; -1 for those outside the layers."""
    parts = name.split(".")
    return int(parts[1]) if parts[0] == "blk" else -1
