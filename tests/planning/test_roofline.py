"""Devices, models and how long a forward takes: units, files, errors."""

import json
from pathlib import Path

import pytest

from ssd.planning.hardware import built_in, called_like, find_device
from ssd.planning.models import find_model
from ssd.planning.roofline import DeviceGroup, forward_on

LAYER_OVERHEAD = 20 * 3.9e-6


def test_a_forward_by_hand() -> None:
    device, model = find_device("h100"), find_model("1b")
    forward = forward_on(DeviceGroup(device), model, sequences=1, context=0)
    assert forward.seconds(1) == pytest.approx(1.236e9 * 2 / 3.35e12 + 16 * LAYER_OVERHEAD)
    # Far beyond the memory bound, arithmetic decides.
    assert forward.seconds(4000) == pytest.approx(4000 * 2 * 1.236e9 / 989e12 + 16 * LAYER_OVERHEAD)


def test_tensor_parallelism_divides_weights_and_adds_all_reduces() -> None:
    model = find_model("70B")
    one, four = (forward_on(DeviceGroup(find_device("h100"), tp), model, context=0) for tp in (1, 4))
    assert four.floor == pytest.approx(one.floor / 4)
    assert four.overhead == pytest.approx(one.overhead + 80 * 2 * 10e-6)
    assert four.slope > 0 == one.slope


def test_memory_decides_what_fits() -> None:
    h100, model = find_device("h100"), find_model("70B")
    assert not DeviceGroup(h100, 1).fits(model)
    assert DeviceGroup(h100, 4).fits(model)
    assert DeviceGroup(find_device("h200"), 1).fits(find_model("70B", "fp8"))
    assert not DeviceGroup(h100, 4).fits(model, sequences=1000, context=8192)


@pytest.mark.parametrize("name", built_in())
def test_every_device_has_a_source_and_sane_figures(name: str) -> None:
    device = built_in()[name]
    assert 1e9 < device.bandwidth < 1e14
    assert device.flops > device.bandwidth
    text = Path(__file__).parents[2].joinpath("src/ssd/planning/data/hardware.toml").read_text()
    assert "source" in text.split(f"[{name}]")[1].split("\n[")[0]


def test_devices_and_models_of_one_s_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[box]\nbandwidth = 100\nflops = 10\nmemory = 64\nlink = 0\nreduce = 0\n")
    assert find_device(str(file)).bandwidth == 100e9
    assert find_device(f"{file}:box").memory == 64e9
    with pytest.raises(ValueError, match="has no device 'other'"):
        find_device(f"{file}:other")
    with pytest.raises(ValueError, match="has no link"):
        DeviceGroup(find_device(str(file)), 2)
    sizes = {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "head_dim": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    ours, known = find_model(str(tmp_path)), find_model("llama-3.2-1b")
    assert ours.params == pytest.approx(known.params, rel=0.01)
    assert (ours.layers, ours.kv) == (known.layers, known.kv)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: find_device("h10"), "did you mean 'h100'"),
        (lambda: find_device("nothing.toml"), "No such file"),
        (lambda: find_model("71B"), "give a model's config.json"),
        (lambda: find_model("70B", "int3"), "use one of bf16"),  # type: ignore[arg-type]
    ],
)
def test_errors_say_what_to_do(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_names_that_machines_have_for_devices() -> None:
    h200, a100 = called_like("NVIDIA H200"), called_like("NVIDIA A100-SXM4-80GB")
    assert h200 is not None
    assert a100 is not None
    assert (h200.name, a100.name) == ("NVIDIA H200 SXM", "NVIDIA A100 80GB SXM")
    assert called_like("cpu") is None


def test_launches_are_those_of_the_decoder() -> None:
    from tests.runtime.launches import count_launches

    per_layer, beside = count_launches()
    said = (Path(__file__).parents[2] / "docs/scaling.md").read_text()
    assert f"{per_layer} launches a layer and {beside} beside them" in " ".join(said.split())
