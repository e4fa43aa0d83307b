"""``quire info``: show what a model file holds, whether it runs, and how much memory it needs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ..errors import QuireError
from ..params.engine_options import KV_DTYPES, EngineConfig
from .adapter_facts import adapter_objects, is_adapter, print_adapters, read_facts, refusals
from .encoder_facts import encoder_facts, encoder_file, print_encoders
from .fit_report import fit_object, fit_of_file, places_of_tensors, print_fit
from .foreign_options import ForeignCommand
from .model_argument import model_argument, model_option
from .model_options import adapters_option
from .session import model_path
from .tables import print_table
from .text import one_line, size_text
from .verdict import DEFAULT_N_CTX, Verdict, opened, verdict_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .._native.gguf import TensorInfo
    from ..chat.detection import ToolSupport
    from ..files.gguf import GGUFReader
    from ..params.engine_options import KvDType

__all__ = ["command"]

# Metadata key for the scheme of a checkpoint that was already quantized.
_QUANTIZATION = "quire.checkpoint.quantization"
# Metadata key for fields of config.json that transformers does not know either.
_IGNORED = "quire.checkpoint.ignored_fields"
# Array entries to show; a vocabulary has a hundred thousand.
SHOWN = 8


@click.command("info", cls=ForeignCommand)
@model_argument
@model_option
@click.option(
    "-c",
    "--ctx-size",
    "n_ctx",
    type=click.IntRange(1),
    metavar="N",
    help=f"Context size in tokens [the model's own, at most {DEFAULT_N_CTX}].",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(KV_DTYPES),
    metavar="TYPE",
    default="auto",
    show_default=True,
    help="Type of the KV cache, as for quire run.",
)
@adapters_option
@click.option("--fit", "fits", is_flag=True, help="Show how much of it fits on a device, and the memory of each part.")
@click.option(
    "--device", metavar="NAME", default="gpu", show_default=True, help="With --fit: the device, as for quire run."
)
@click.option(
    "--fit-target",
    type=click.IntRange(0, 2**24),
    metavar="MIB",
    default=1024,
    show_default=True,
    help="With --fit: device memory to leave free.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; long arrays are shortened.")
@click.option("--architectures", is_flag=True, help="List the supported architectures.")
def command(
    *,
    path: str | None,
    n_ctx: int | None,
    kv_dtype: KvDType,
    adapters: Sequence[tuple[str, float]] | None,
    fits: bool,
    device: str,
    fit_target: int,
    as_json: bool,
    architectures: bool,
) -> None:
    """Show MODEL's metadata, tensors, types and sizes, whether it runs, and how much memory it needs.

    MODEL is a GGUF file, a checkpoint folder, or a LoRA adapter; without it, the model in the package is shown.  --lora
    shows an adapter next to its model.  The exit code is 0 even for a model that does not run.
    """
    if architectures:
        if path is not None:
            raise click.UsageError("--architectures takes no MODEL")
        from .architectures import show

        show(as_json=as_json)
        return
    source = model_path(path)
    if is_adapter(source):
        if adapters:
            raise click.UsageError("MODEL is an adapter: with --lora, give the model that it belongs to")
        _show_adapter(source, as_json=as_json)
        return
    if (file := encoder_file(source)) is not None:
        _show_encoder(source, file, as_json=as_json)
        return
    with opened(source) as (reader, refusal):
        encoders = None if reader is None else encoder_facts(source, reader)
        verdict = Verdict(reasons=[refusal]) if reader is None else verdict_of(reader, n_ctx, kv_dtype)
        beside: list[dict[str, object]] = []
        if adapters and reader is not None and not verdict.reasons:
            reasons = refusals(source, reader, adapters)
            beside = adapter_objects(adapters, reasons)
            verdict.reasons.extend(reason for reason in reasons if reason)
        fit = None
        if fits and reader is not None and not verdict.reasons:
            config = EngineConfig(
                device=device, n_ctx=n_ctx, kv_dtype=kv_dtype, fit_target=fit_target, adapters=tuple(adapters or ())
            )
            fit = fit_of_file(reader, source, config)
        if as_json:
            shown = _verdict_object(source, verdict) | ({} if reader is None else _as_object(reader))
            shown |= {} if fit is None else {"fit": fit_object(fit)}
            shown |= {"encoder": None if encoders is None else asdict(encoders)}
            print(json.dumps(shown | ({"adapters": beside} if adapters else {})))
            return
        if reader is not None:
            _print(source, reader, verdict, {} if fit is None else places_of_tensors(fit))
        if fit is not None:
            print_fit(fit)
        print_encoders(encoders, source)
        print_adapters(beside)
        for reason in verdict.reasons:
            print(f"runs: no: {one_line(reason)}")
        if not verdict.reasons:
            print("runs: yes")


def _show_encoder(path: Path, reader: GGUFReader, *, as_json: bool) -> None:
    encoders = encoder_facts(path, reader)
    assert encoders is not None  # the file is one
    if as_json:
        print(json.dumps({"path": str(path), **_as_object(reader), "encoder": asdict(encoders)}))
        return
    _print(path, reader, Verdict(), {})
    if encoders.unused_because is not None:
        print(f"runs: no: {one_line(encoders.unused_because)}")
        return
    print(f"encoder of {' and '.join(encoders.kinds)} input: {', '.join(encoders.projectors)}")
    print(f"runs: with its model (quire run -m MODEL --mmproj {one_line(str(path))})")


def _show_adapter(path: Path, *, as_json: bool) -> None:
    facts = asdict(read_facts(path))
    if as_json:
        print(json.dumps(facts))
        return
    print_adapters([facts])
    print(f"runs: with its model (check: quire info MODEL --lora {one_line(str(path))})")


def _types(tensors: list[TensorInfo]) -> list[tuple[str, int, int, int]]:
    """Return name, number of tensors, of elements and of bytes for each dtype, the largest first."""
    found: dict[str, tuple[int, int, int]] = {}
    for info in tensors:
        n, elements, size = found.get(str(info.dtype), (0, 0, 0))
        found[str(info.dtype)] = (n + 1, elements + math.prod(info.shape), size + info.size_bytes)
    return sorted(((name, *counts) for name, counts in found.items()), key=lambda row: -row[3])


def _entries(reader: GGUFReader, key: str) -> tuple[str, int, Sequence[object]] | None:
    """Return type, length and first entries of an array, or None for a single value."""
    kind = reader.metadata.type_of(key)
    if not kind.endswith("[]"):
        return None
    if kind != "string[]":
        return kind, *reader.metadata.beginning(key, SHOWN)
    strings = reader.metadata.strings(key)
    return kind, len(strings), [item.decode("utf-8", "backslashreplace") for item in strings[:SHOWN]]


def _print(path: Path, reader: GGUFReader, verdict: Verdict, places: Mapping[str, str]) -> None:
    n_elements = sum(math.prod(info.shape) for info in reader.tensors)
    kind = "as GGUF" if path.is_dir() else f"GGUF {reader.version}"
    parts = f" in {reader.n_files} files" if reader.n_files > 1 else ""
    print(
        f"{one_line(str(path))}: {kind}, {size_text(reader.size_bytes)}{parts}, "
        f"{len(reader.tensors)} tensors, {n_elements:,} parameters"
    )
    print_table(
        ("key", "type", "value"), ((k, reader.metadata.type_of(k), _value_text(reader, k)) for k in reader.metadata)
    )
    where = ("place",) if places else ()
    print_table(
        ("tensor", "shape", "dtype", "size>", *where),
        (
            (t.name, " x ".join(map(str, t.shape)), str(t.dtype), size_text(t.size_bytes),
             *(places.get(t.name, "-") for _ in where))
            for t in reader.tensors
        ),
    )  # fmt: skip
    print_table(
        ("dtype", "tensors>", "parameters>", "size>"),
        ((name, str(n), f"{elements:,}", size_text(size)) for name, n, elements, size in _types(reader.tensors)),
    )
    if _QUANTIZATION in reader.metadata:
        print(f"quantization of the checkpoint: {reader.metadata.text(_QUANTIZATION)}")
    if _IGNORED in reader.metadata:
        names = [name.decode("utf-8", "replace") for name in reader.metadata.strings(_IGNORED)]
        print(f"ignored fields of config.json: {one_line(', '.join(names))}")
    if (support := _tool_support(reader)) is not None:
        print(f"tool calls: {_calls_text(support)}")
    if (sampling := _sampling(reader)) is not None:
        print("chat sampling: " + ", ".join(f"{name} {value}" for name, value in sampling.items()))
    if (predicting := _predicting(reader)) is not None:
        n, is_known = predicting
        how = "--speculation mtp uses the first" if is_known else "not used"
        print(f"multi-token prediction layers: {n} ({how})")
    if verdict.chat_refusal:
        print(f"chat: no: {one_line(verdict.chat_refusal)}")
    memory = verdict.memory
    if memory is None:
        return
    print_table(
        (f"memory for a context of {memory.n_ctx}", "size>"),
        (
            ("weights", size_text(memory.weights_bytes)),
            (f"KV cache ({memory.kv_dtype})", size_text(memory.cache_bytes)),
            ("compute", size_text(memory.compute_bytes)),
            ("total", size_text(memory.total_bytes)),
        ),
    )
    if memory.stock_operations:
        print(f"runs on ggml's operators: {', '.join(memory.stock_operations)}")


def _tool_support(reader: GGUFReader) -> ToolSupport | None:
    """Detect how the chat template handles tools; None without a template."""
    from ..chat.detection import tool_support

    key = "tokenizer.chat_template"
    return tool_support(reader.metadata.text(key)) if key in reader.metadata else None


def _predicting(reader: GGUFReader) -> tuple[int, bool] | None:
    """Count the layers that predict later tokens, and tell if Quire can use one; None if there are none."""
    from ..models import load_model

    try:
        n = reader.metadata.integer(f"{reader.metadata.text('general.architecture')}.nextn_predict_layers", 0)
    except QuireError:  # the verdict already reports it
        return None
    if n == 0:
        return None
    try:
        return n, load_model(reader, predicts=True).predictor is not None
    except QuireError:  # it may still run without them
        return n, False


def _sampling(reader: GGUFReader) -> dict[str, object] | None:
    """Return the sampling defaults of a chat; None for a model without a chat template."""
    from ..engine.loading.sampling_advice import advised_sampling
    from ..params.sampling_defaults import chat_defaults

    if "tokenizer.chat_template" not in reader.metadata:
        return None
    try:
        advice = advised_sampling(reader.metadata)
    except QuireError:  # the verdict already reports it
        return None
    return {name: _rounded(value) for name, value in chat_defaults(advice).items()}


def _rounded(value: object) -> object:
    """Undo the noise of a number that the file stored in 32 bits."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _calls_text(support: ToolSupport) -> str:
    if not support.takes_tools:
        return "hermes, generic (the chat template takes no tools)"
    return support.format_name or "no known format, though the chat template takes tools"


def _value_text(reader: GGUFReader, key: str) -> str:
    array = _entries(reader, key)
    if array is None:
        value = reader.metadata[key]
        return _shortened(value if isinstance(value, str) else str(value))
    _, n, first = array
    return f"{n}: " + ", ".join(_shortened(repr(item), 24) for item in first) + (", ..." if n > SHOWN else "")


def _shortened(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[:limit] + "..."


def _verdict_object(path: Path, verdict: Verdict) -> dict[str, object]:
    memory = verdict.memory
    return {
        "path": str(path),
        "runs": not verdict.reasons,
        "runs_not_because": verdict.reasons,
        "chat_template_refused_because": verdict.chat_refusal or None,
        "memory": {**asdict(memory), "total_bytes": memory.total_bytes} if memory else None,
        "memory_unknown_because": None if memory else "; ".join(verdict.reasons),
    }


def _as_object(reader: GGUFReader) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for key in reader.metadata:
        array = _entries(reader, key)
        if array is None:
            metadata[key] = _json_value(reader.metadata[key])
        else:
            kind, n, first = array
            metadata[key] = {"type": kind, "length": n, "first": [_json_value(item) for item in first]}
    return {
        "version": reader.version,
        "n_files": reader.n_files,
        "size_bytes": reader.size_bytes,
        "alignment": reader.alignment,
        "metadata": metadata,
        "tensors": [
            {"name": t.name, "shape": list(t.shape), "dtype": str(t.dtype), "size_bytes": t.size_bytes}
            for t in reader.tensors
        ],
        "types": [
            {"dtype": name, "n_tensors": n, "n_parameters": elements, "size_bytes": size}
            for name, n, elements, size in _types(reader.tensors)
        ],
        "tool_calls": None if (support := _tool_support(reader)) is None else asdict(support),
        "chat_sampling": _sampling(reader),
        "predicting_layers": None
        if (predicting := _predicting(reader)) is None
        else {"n": predicting[0], "is_used": predicting[1]},
    }


def _json_value(value: object) -> object:
    """Make NaN and infinity strings, because JSON has neither."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
