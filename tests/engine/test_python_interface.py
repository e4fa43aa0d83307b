"""The objects as Python users see them: docstrings, representations, and protocols of other libraries.

Oracles: the stubs for docstrings, NumPy for DLPack, the model's own requests for templates, the reader for copies.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import quire
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model

ROOT = Path(quire.__path__[0])
CHAT = [{"role": "user", "content": "Hi <|im_end|>"}]


def native_classes() -> list[str]:
    return [name for name, where in quire._WHERE.items() if where.startswith("_native.") and name[0].isupper()]


@pytest.mark.parametrize("name", native_classes())
def test_native_classes_have_the_docstrings_of_their_stubs(name: str) -> None:
    stub = ROOT.joinpath(*quire._WHERE[name].split(".")).with_suffix(".pyi").read_text(encoding="utf-8")
    (node,) = [one for one in ast.parse(stub).body if isinstance(one, ast.ClassDef) and one.name == name]
    shown = inspect.getdoc(getattr(quire, name)) or ""
    assert shown.startswith(ast.get_docstring(node) or "?")
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (text := ast.get_docstring(member)):
            assert re.sub(r"\s+", " ", text) in re.sub(r"\s+", " ", shown), member.name


def test_help_shows_docstrings_of_native_classes() -> None:
    import pydoc

    text = pydoc.plain(pydoc.render_doc(quire.Tensor))
    assert "A typed, contiguous array on a device" in text
    assert "Return a copy on another device" in text


def test_every_public_name_has_a_docstring() -> None:
    silent = [
        name
        for name in quire.__all__
        if isinstance(getattr(quire, name), type) and not inspect.getdoc(getattr(quire, name))
    ]
    assert silent == []


def test_verbs_of_the_async_front_end_are_those_of_the_blocking_one() -> None:
    script = ROOT.parent.parent / "ci" / "make_async_llm.py"
    if not script.is_file():
        pytest.skip("needs a checkout")
    made = runpy.run_path(str(script))
    source, target = (path.read_text(encoding="utf-8") for path in (made["SOURCE"], made["TARGET"]))
    # Not compared as text, because the formatter breaks lines.
    assert ast.dump(ast.parse(made["page"](source, target))) == ast.dump(ast.parse(target)), "run ci/make_async_llm.py"


@pytest.mark.parametrize("name", ["gguf", "safetensors"])
def test_public_modules_export_the_names_of_quire_files(name: str) -> None:
    public, source = (importlib.import_module(f"quire.{place}") for place in (name, f"files.{name}"))
    assert public.__all__ == source.__all__
    assert all(getattr(public, each) is getattr(source, each) for each in public.__all__)


def test_the_reference_has_every_public_name() -> None:
    page = ROOT.parent.parent / "docs" / "python.md"
    if not page.is_file():
        pytest.skip("needs a checkout")
    text = page.read_text(encoding="utf-8")
    missing = [n for n in quire.__all__ if not re.search(rf"^### {n}$|^- `{n}`:", text, re.MULTILINE)]
    assert missing == ["__version__"], "run ci/make_python_reference.py"


def test_representations(llm: LLM, tmp_path: Path) -> None:
    assert repr(llm) == f"LLM('tiny-chat', qwen3, {llm.n_ctx} tokens of context, cpu)"
    assert repr(llm.tokenizer) == f"Tokenizer(byte_pair, {llm.tokenizer.n_vocab} tokens)"
    assert repr(quire.ChatTemplate("{{ messages }}{{ depth }}")) == (
        "ChatTemplate(25 characters, no tools, variables: depth)"
    )
    with quire.GGUFWriter(tmp_path / "x.gguf", "llama") as writer:
        assert repr(writer).endswith("x.gguf', 1 keys, 0 tensors)")


def test_a_tokenizer_by_transformers_names(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    assert len(tokenizer) == tokenizer.n_vocab == len(tokenizer.all_token_bytes())
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (tokenizer.eos_id, tokenizer.bos_id)
    assert tokenizer.pad_token_id == tokenizer.pad_id
    asked = llm.chat(CHAT, max_tokens=1)
    assert tokenizer.apply_chat_template(CHAT, add_generation_prompt=True) == asked.prompt_token_ids
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert isinstance(text, str)
    assert text.count("<|im_end|>") == 2  # one from the template, one typed by the user
    ids = tokenizer.apply_chat_template(CHAT)
    assert ids == asked.prompt_token_ids[: len(ids)]
    assert ids.count(tokenizer.control_tokens["<|im_end|>"]) == 1


def test_dlpack_shares_memory() -> None:
    tensor = quire.Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    shared = np.from_dlpack(tensor)
    np.testing.assert_array_equal(shared, tensor.numpy())
    assert np.shares_memory(shared, tensor.numpy())


def test_a_copied_file_is_the_same(tmp_path: Path) -> None:
    reader = quire.GGUFReader(packaged_model())
    target = tmp_path / "copy.gguf"
    with quire.GGUFWriter(target, "other") as writer:
        writer.copy_metadata(reader.metadata, without=["general.name"])
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name))
    copy = quire.GGUFReader(target)
    assert [*copy.metadata] == [key for key in reader.metadata if key != "general.name"]
    for key in copy.metadata:
        assert copy.metadata.type_of(key) == reader.metadata.type_of(key)
        np.testing.assert_array_equal(copy.metadata[key], reader.metadata[key])  # type: ignore[arg-type]
    for info in reader.tensors:
        np.testing.assert_array_equal(copy.tensor(info.name).numpy(), reader.tensor(info.name).numpy())


def test_keys_are_copied_one_by_one(tmp_path: Path) -> None:
    reader = quire.GGUFReader(packaged_model())
    with quire.GGUFWriter(tmp_path / "x.gguf", "llama") as writer:
        for key in reader.metadata:
            writer.set(key, reader.metadata[key], reader.metadata.type_of(key))
    assert [*quire.GGUFReader(tmp_path / "x.gguf").metadata] == [*reader.metadata]


@pytest.mark.parametrize(("dtype", "text"), [("f16", "f32.* f16"), ("f32", "24 of 16 bytes")])
def test_a_tensor_of_another_kind_is_rejected(tmp_path: Path, dtype: str, text: str) -> None:
    writer = quire.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("a", dtype, (4,))
    with pytest.raises(quire.ShapeError, match=text):
        writer.write("a", quire.Tensor.from_numpy(np.zeros(6, np.float32)))
    writer.abort()


def test_a_value_that_is_not_an_array_is_rejected(tmp_path: Path) -> None:
    writer = quire.GGUFWriter(tmp_path / "x.gguf", "llama")
    for value in (7, "text", None):
        with pytest.raises(quire.ShapeError, match=r"'a' is .*array"):
            writer.set("a", value, "i32[]")


def test_a_decoder_alone() -> None:
    from quire._native.engine import Request, SamplingParams

    decoder = quire.open_decoder(None, quire.EngineConfig(n_ctx=64, threads=1))
    params = SamplingParams()
    params.max_tokens, params.temperature = 3, 0.0
    decoder.submit(Request([1, 2, 3], params))
    kinds = []
    while "finish" not in kinds:
        kinds += [event.kind for event in decoder.wait(5.0)]
    decoder.close()
    assert decoder.n_ctx == 64
