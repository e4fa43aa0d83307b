"""Published configurations with tiny weights: each opens, or an error names the unsupported part."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from published_files import configuration, rows
from quantized_checkpoints import CASES, write_quantized
from quire.checkpoints.conversion import CheckpointReader, convert, opened_adapters
from quire.checkpoints.conversion.class_names import class_of
from quire.checkpoints.conversion.generation import write_sampling
from quire.checkpoints.reading import Fields, reference_of
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.models.registry import checkpoint_of
from quire.tokenizer import Tokenizer
from tiny_adapters import PEFT_CONFIG
from tiny_checkpoints import shapes_of, tokenizer_json, weight_of, write_checkpoint, write_safetensors

pytestmark = pytest.mark.python_only
MODELS = rows("decoders") | rows("encoders")
QUANTIZED, ADAPTERS = rows("quantizations"), rows("adapters")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")  # names of the number of layers
SAMPLING, TOKENIZERS = rows("generation"), rows("tokenizers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder for each tiny checkpoint; repositories of its class write their config.json there."""
    place = tmp_path_factory.mktemp("published")
    found = {tiny: place / tiny for tiny in {row["tiny"] for row in MODELS.values()}}
    for tiny, folder in found.items():
        write_checkpoint(folder, tiny)
    return found


@pytest.mark.whole
@pytest.mark.parametrize("name", MODELS)
def test_a_published_configuration_opens(tmp_path: Path, folders: dict[str, Path], name: str) -> None:
    row = MODELS[name]
    folder = folders[row["tiny"]]
    (folder / "config.json").write_text(json.dumps(configuration(row)))
    if "refused" in row:
        with pytest.raises(UnsupportedError, match=row["refused"]):
            convert(folder, tmp_path / "x.gguf", "f32")
        return
    convert(folder, tmp_path / "x.gguf", "f32")
    assert load_model(GGUFReader(tmp_path / "x.gguf")).config.n_layer > 0


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if "refused" not in row])
def test_a_published_configuration_has_keys_at_its_own_sizes(name: str) -> None:
    config = MODELS[name]["config"]
    kind, _ = class_of(config)
    whole = Fields("config.json", config, reference=reference_of(kind))
    checkpoint = checkpoint_of(kind).chosen(whole)
    text = checkpoint.config_of(whole)
    keys = {key: value for key, _, value in checkpoint.entries(text)}
    across = text.value("cross_attention_layers") or []  # text skips layers of images
    assert isinstance(across, list)
    assert keys["block_count"] + len(across) in {text.value(name) for name in LAYERS}


@pytest.mark.whole
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_published_quantization_opens(tmp_path: Path, name: str) -> None:
    row = QUANTIZED[name]
    write_quantized(tmp_path / "hf", CASES[row["case"]])
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": row["quantization_config"]}
    if "file" in row:  # the older place of these fields
        (tmp_path / "hf" / row["file"]).write_text(json.dumps(config.pop("quantization_config")))
    path.write_text(json.dumps(config))
    if "refused" in row:
        with pytest.raises((LoadError, UnsupportedError), match=row["refused"]):
            convert(tmp_path / "hf", tmp_path / "x.gguf", "bf16")
        return
    convert(tmp_path / "hf", tmp_path / "x.gguf", "bf16")
    reader = GGUFReader(tmp_path / "x.gguf")
    assert "matrices" in reader.metadata.text("quire.checkpoint.quantization")
    assert load_model(reader).config.n_layer > 0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "hf"
    write_checkpoint(folder, "llama")
    return folder


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_published_adapter_opens(tmp_path: Path, base: Path, name: str) -> None:
    config: dict[str, Any] = ADAPTERS[name]["config"]
    tensors = {}
    for tensor, (n_rows, n_columns) in ((t, s) for t, s in shapes_of("llama").items() if len(s) == 2):
        if tensor.endswith(("q_proj.weight", "v_proj.weight")):
            module = f"base_model.model.{tensor.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = weight_of("adapter", tensor, (4, n_columns))
            tensors[f"{module}.lora_B.weight"] = weight_of("adapter", tensor, (n_rows, 4))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(adapter / "adapter_model.safetensors", tensors)
    (tmp_path / "scratch").mkdir()
    with CheckpointReader(base, tmp_path / "scratch", "f32") as reader:
        if refused := ADAPTERS[name].get("refused"):
            with (
                pytest.raises((LoadError, UnsupportedError), match=refused),
                opened_adapters([(str(adapter), 1.0)], reader),
            ):
                pass
            return
        with opened_adapters([(str(adapter), 1.0)], reader) as adapters:
            assert load_model(reader, adapters=adapters).config.n_layer == 2


def test_every_field_of_the_newest_adapters_is_published() -> None:
    published = {field for row in ADAPTERS.values() if "refused" not in row for field in row["config"]}
    assert set(PEFT_CONFIG) <= published


class _Keys(dict[str, object]):
    """Collects keys like a writer of GGUF files."""

    def set(self, name: str, value: object, kind: str) -> None:
        self[name] = value


@pytest.mark.parametrize("name", SAMPLING)
def test_published_advice_on_sampling_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    row = SAMPLING[name]
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 272}))
    (tmp_path / "generation_config.json").write_text(json.dumps(row["config"]))
    keys = _Keys()
    with caplog.at_level(logging.WARNING, "quire"):
        write_sampling(keys, tmp_path)  # type: ignore[arg-type]
    assert keys == row["keys"]
    assert all(note in caplog.text for note in row["notes"])
    assert bool(row["notes"]) == bool(caplog.records)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_published_tokenizer_configuration_opens(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(TOKENIZERS[name]["config"]))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a b", add_special=False)) == "a b"
