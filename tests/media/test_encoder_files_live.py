"""``quire convert``, ``quire quantize`` and ``quire info`` with encoders.

Oracles: the answers of the checkpoint itself; llama.cpp's rules for the types of an mmproj file's tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from ollama_files import FAMILIES, write_ollama_file
from quire import LLM, SamplingParams
from quire.cli.main import main
from quire.gguf import GGUFReader
from quire.media import View
from quire.models.media import load_media
from tiny_media import family

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("checkpoint")
    tiny = family("qwen3vl")
    tiny.save(tiny.make(), found)
    return found


@pytest.fixture(scope="module")
def made(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "m.gguf"
    assert main(["convert", str(folder), str(out), "--dtype", "f32"]) == 0
    return out


def answer(model: Path) -> list[int]:
    content = [{"type": "image", "image": picture(64, 96)}, {"type": "text", "text": "what?"}]
    with LLM(model, kv_dtype="f32", threads=1, n_ctx=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        return llm.chat([{"role": "user", "content": content}], params).choices[0].token_ids


def test_convert_writes_the_model_and_its_encoder(folder: Path, made: Path, tmp_path: Path) -> None:
    encoder = made.with_name("mmproj-m.gguf")
    assert answer(made) == answer(folder)
    assert main(["convert", str(folder), str(tmp_path / "e.gguf"), "--dtype", "f32", "--mmproj"]) == 0
    assert (tmp_path / "e.gguf").read_bytes() == encoder.read_bytes()
    assert main(["convert", str(folder), str(tmp_path / "t.gguf"), "--dtype", "f32", "--no-mmproj"]) == 0
    assert (tmp_path / "t.gguf").read_bytes() == made.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"e.gguf", "t.gguf"}
    assert main(["convert", str(folder), str(tmp_path / "x.gguf"), "--mmproj", "--no-mmproj"]) == 2


@pytest.mark.parametrize(
    ("mix", "expected"),
    [
        # llama.cpp reads no number of layers from an mmproj file, so every ffn_down counts as one of the last layers.
        ("Q8_0", {"v.blk.0.attn_qkv.weight": "q8_0", "v.blk.0.ffn_down.weight": "q8_0", "mm.0.weight": "q8_0"}),
        ("Q4_K_M", {"v.blk.0.attn_qkv.weight": "q5_0", "v.blk.0.ffn_down.weight": "q8_0", "mm.0.weight": "q4_k"}),
    ],
)
def test_quantized_encoders(made: Path, tmp_path: Path, mix: str, expected: dict[str, str]) -> None:
    source, out = made.with_name("mmproj-m.gguf"), tmp_path / "q.gguf"
    assert main(["quantize", str(source), str(out), mix]) == 0
    types = {info.name: str(info.dtype) for info in GGUFReader(out).tensors}
    assert {name: types[name] for name in expected} == expected
    kept = [name for name in types if "patch_embd" in name or "position_embd" in name or name.endswith(".bias")]
    assert kept
    assert {types[name] for name in kept} == {"f32"}
    model = load_media(GGUFReader(out))["image"]
    assert model.n_out == load_media(GGUFReader(source))["image"].n_out
    assert np.isfinite(_rows(out)).all()
    assert np.corrcoef(_rows(out).ravel(), _rows(source).ravel())[0, 1] > 0.9


def _rows(path: Path) -> np.ndarray:
    from quire._native.core import find_device
    from quire.engine.media import MediaEncoder

    reader = GGUFReader(path)
    model = load_media(reader)["image"]
    (view,) = model.views(picture(64, 96))
    assert isinstance(view, View)
    return np.asarray(MediaEncoder(model, find_device("cpu"), threads=1).encode(view))


@pytest.mark.parametrize(
    ("name", "form"),
    [("qwen3vl", "qwen3vl"), ("gemma4", "gemma4-vl"), ("lfm2vl", "lfm2-vl"), ("llama4", "llama4-vl")],
)
def test_an_encoder_in_the_models_own_file(name: str, form: str, tmp_path: Path) -> None:
    """Ollama writes such files."""
    tiny = family(name)
    tiny.save(tiny.make(), tmp_path)
    assert main(["convert", str(tmp_path), str(tmp_path / "t.gguf"), "--dtype", "f32", "--no-mmproj"]) == 0
    (path := tmp_path / "ollama").mkdir()
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    # Ollama's files hold these limits, or the usual ones.
    settings |= {
        "qwen3vl": {"min_pixels": 64, "max_pixels": 4096},
        "gemma4": {"max_soft_tokens": 280},
        "llama4": {"max_patches": 16},
    }.get(name, {})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    model = write_ollama_file(tmp_path, tmp_path / "t.gguf", path / "m.gguf", FAMILIES[form])
    assert answer(model) == answer(tmp_path)
    assert main(["info", str(model)]) == 0


def test_info_shows_encoders(folder: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def facts(path: Path) -> dict[str, object]:
        assert main(["info", str(path), "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)["encoder"]
        return found

    encoder = made.with_name("mmproj-m.gguf")
    n = sum(int(np.prod(info.shape)) for info in GGUFReader(encoder).tensors)
    for path, source in ((made, encoder), (encoder, encoder), (folder, folder)):
        found = facts(path)
        assert found["path"] == str(source)
        assert found["kinds"] == ["image"]
        assert found["projectors"] == ["qwen3vl_merger"]
        assert found["n_parameters"] == n
        assert found["unused_because"] is None
    assert main(["info", str(made)]) == 0
    assert "input: text, image (mmproj-m.gguf: qwen3vl_merger" in capsys.readouterr().out
    assert main(["info", str(encoder)]) == 0
    assert "--mmproj" in capsys.readouterr().out


def test_files_hold_what_llama_cpp_requires(made: Path, tmp_path: Path) -> None:
    from quire.checkpoints.conversion.projector import convert_projector
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    # It adds rows of the encoder to as many layers.
    assert GGUFReader(made).metadata.integer("qwen3vl.n_deepstack_layers") == 2
    # It has no defaults; this processor's settings rely on those of transformers.
    tiny = family("qwen2vl")
    assert "image_mean" not in tiny.processor
    tiny.save(tiny.make(), tmp_path)
    convert_projector(tmp_path, tmp_path / "mmproj.gguf")
    found = GGUFReader(tmp_path / "mmproj.gguf").metadata
    assert np.allclose(found["clip.vision.image_mean"], Qwen2VLImageProcessorPil.image_mean)
    assert np.allclose(found["clip.vision.image_std"], Qwen2VLImageProcessorPil.image_std)


def test_encoders_run_on_the_kernels_of_the_model(
    folder: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import quire.engine.media
    from quire._native.kernels import KernelSet
    from quire.checkpoints.conversion.projector import convert_projector

    convert_projector(folder, tmp_path / "f16.gguf", "f16")
    seen: list[dict[str, Any]] = []

    class Seen(quire.engine.media.MediaEncoder):
        def __init__(self, *args: Any, **options: Any) -> None:
            seen.append(options)
            super().__init__(*args, **options)

    monkeypatch.setattr("quire.engine.media.MediaEncoder", Seen)
    encoders = [(made.with_name("mmproj-m.gguf"), True), (tmp_path / "f16.gguf", True), (tmp_path / "f16.gguf", False)]
    for encoder, deterministic in encoders:
        LLM(made, mmproj=str(encoder), deterministic=deterministic, threads=1, n_ctx=512).close()
    assert [options["kernel_set"].is_deterministic for options in seen] == [True, True, False]
    # Keys are rounded to BF16 only if products are, too.
    sets = [KernelSet(deterministic=deterministic) for _, deterministic in encoders]
    expected = ["bf16" if kernels.multiplies_bf16 else "f16" for kernels in sets]
    assert [options["kv_dtype"] for options in seen] == ["f16", *expected[1:]]
