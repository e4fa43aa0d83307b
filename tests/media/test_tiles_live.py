"""Images cut into tiles: settings of checkpoints, templates that write no images, files by llama.cpp's older converter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire._native.core import find_device
from quire.checkpoints.conversion.projector import convert_projector
from quire.engine.media import MediaEncoder
from quire.errors import UnsupportedError
from quire.files.gguf import GGUFReader, GGUFWriter
from quire.models.media import MediaModel, load_media
from tiny_media import family

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

ONE = SamplingParams(temperature=0, max_tokens=1)


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smolvlm")
    found = family("smolvlm")
    found.save(found.make(), folder)
    return folder


def converted(folder: Path, out: Path, **settings: object) -> MediaModel:
    """Convert an encoder with other settings of the processor."""
    file = folder / "preprocessor_config.json"
    stored = file.read_text()
    try:
        file.write_text(json.dumps({**json.loads(stored), **settings}))
        convert_projector(folder, out, "f32")
    finally:
        file.write_text(stored)
    return load_media(GGUFReader(out))["image"]


def rows_of(model: MediaModel, image: Any) -> Any:
    encoder = MediaEncoder(model, find_device("cpu"), threads=1)
    return np.concatenate([encoder.encode(view) for view in model.views(image)])


def test_whole_images_of_smolvlm(smolvlm: Path, tmp_path: Path) -> None:
    model = converted(smolvlm, tmp_path / "x.gguf", do_image_splitting=False)
    image = picture(97, 211)
    assert len(model.views(image)) == 1
    assert "".join(map(str, model.markup(model.layout(image)))) == (
        "<fake_token_around_image><global-img>4<fake_token_around_image>"
    )


def test_settings_without_a_key_are_refused(smolvlm: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="resample"):
        converted(smolvlm, tmp_path / "x.gguf", resample=2)


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message.content }}|{% endfor %}",
        "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}|{% endfor %}",
        "{% for message in messages %}<image>{% for part in message.content %}{{ part.text }}{% endfor %}|{% endfor %}",
    ],
    ids=["text only", "parts as text", "another image"],
)
def test_templates_that_know_no_images(smolvlm: Path, tmp_path: Path, template: str) -> None:
    folder = Path(shutil.copytree(smolvlm, tmp_path / "model"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    parts = [{"type": "text", "text": "a"}, {"type": "image", "image": picture(64, 64)}, {"type": "text", "text": "b"}]
    with LLM(folder, mmproj="auto", threads=1, n_ctx=512) as llm:
        if template.count("<image>"):
            with pytest.raises(ValueError, match="places"):
                llm.chat([{"role": "user", "content": parts}], ONE)
            return
        ids = llm.chat([{"role": "user", "content": parts}], ONE).prompt_token_ids
        pad = family("smolvlm").pad_id
        assert ids.count(pad) == 4 * 10
        assert (ids[0], ids[-2:]) == (ord("a"), [ord("b"), ord("|")])


def test_exchanged_names_of_the_mlp(smolvlm: Path, tmp_path: Path) -> None:
    model = converted(smolvlm, tmp_path / "x.gguf")
    exchanged = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    rewrite(tmp_path / "x.gguf", tmp_path / "y.gguf", lambda name, shape: (renamed(name, exchanged), shape))
    other, image = load_media(GGUFReader(tmp_path / "y.gguf"))["image"], picture(97, 211)
    assert np.array_equal(rows_of(model, image), rows_of(other, image))


def test_another_name_of_llama4s_norm(tmp_path: Path) -> None:
    found = family("llama4")
    found.save(found.make(), tmp_path)
    model = converted(tmp_path, tmp_path / "x.gguf")
    rewrite(
        tmp_path / "x.gguf",
        tmp_path / "y.gguf",
        lambda name, shape: (renamed(name, {"ln2": "attn_post_norm"}), shape),
    )
    assert "v.blk.0.ln2.weight" not in {tensor.name for tensor in GGUFReader(tmp_path / "y.gguf").tensors}
    other, image = load_media(GGUFReader(tmp_path / "y.gguf"))["image"], picture(64, 64)
    assert np.array_equal(rows_of(model, image), rows_of(other, image))


def test_further_dimensions_of_positions(tmp_path: Path) -> None:
    found = family("internvl")
    found.save(found.make(), tmp_path)
    model = converted(tmp_path, tmp_path / "x.gguf")
    more = {"v.position_embd.weight": (1,), "v.class_embd": (1, 1)}
    rewrite(tmp_path / "x.gguf", tmp_path / "y.gguf", lambda name, shape: (name, more.get(name, ()) + shape))
    other, image = load_media(GGUFReader(tmp_path / "y.gguf"))["image"], picture(64, 64)
    assert np.array_equal(rows_of(model, image), rows_of(other, image))


def rewrite(file: Path, out: Path, change: Callable[[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]) -> None:
    """Copy a file with changed names and shapes of tensors."""
    reader = GGUFReader(file)
    with GGUFWriter(out, "clip") as writer:
        for key in reader.metadata:
            if key != "general.architecture":
                writer.set(key, reader.metadata[key], reader.metadata.type_of(key))
        made = [(info, *change(info.name, tuple(info.shape))) for info in reader.tensors]
        for info, name, shape in made:
            writer.add_tensor(name, info.dtype, shape)
        for info, name, shape in made:
            writer.write(name, reader.tensor(info.name).numpy().reshape(shape))


def renamed(name: str, parts: Mapping[str, str]) -> str:
    return ".".join(parts.get(part, part) for part in name.split("."))
