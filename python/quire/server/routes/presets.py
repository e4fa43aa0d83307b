"""Create a named model from a request in Ollama's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from ...errors import RequestError
from ...hub.preset_options import options_of_preset
from ...hub.registry import Preset
from ...params.sampling import SamplingParams, fields_of
from ..body_types import Body
from ..failures import ApiError, brief
from .fields import Name, Text
from .modelfile import read_modelfile, translated_template

__all__ = ["CreateBody", "preset_of_body"]

_MOST_SYSTEM = 1 << 20
# Ollama's parameter names and Quire's; engine options by their command-line names.
_SAMPLING = {field: name for name, fields in fields_of("ollama").items() for field in fields}
_SAMPLING |= {"num_predict": "max_tokens", "stop": "stop"}
_ENGINE = {"num_ctx": "ctx-size", "num_thread": "threads", "num_batch": "batch-size"}


class CreateBody(Body, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """A name for a model with parameters and a system message, as fields or as the text of a Modelfile."""

    model: Name | None = None
    name: Name | None = None
    from_: Annotated[str, Meta(max_length=1024)] | None = None
    system: Text | None = None
    template: Text | None = None
    parameters: dict[str, Any] = {}
    modelfile: Text | None = None
    stream: bool = True
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "adapters": ({},), "files": ({},), "messages": ([],), "quantize": ("",), "license": ("",),
    }  # fmt: skip


def _adapter_in(folder: str | None, name: str) -> str:
    """The path of an adapter, a file or a PEFT folder, beside the models.

    Clients must not reach other files of the machine.
    """
    home = None if folder is None else Path(folder).resolve()
    path = None if home is None else home / name
    is_name = 0 < len(name.encode()) < 256 and Path(name).name == name  # the operating system rejects longer names
    if home is None or path is None or not is_name or not _is_adapter(path) or path.resolve().parent != home:
        text = f"no adapter {brief(name)} beside the models: name a file or a PEFT folder there"
        raise ApiError(400, "invalid_value", text, "modelfile")
    return str(path)


def _is_adapter(path: Path) -> bool:
    return path.is_file() or (path / "adapter_config.json").is_file()


def preset_of_body(body: CreateBody, folder: str | None) -> Preset:
    """The preset that a request body describes.  ApiError names any part that is missing or unsupported."""
    given: list[tuple[str, Any]] = [(key, value) for key, value in body.parameters.items() if value is not None]
    model, system, adapters = body.from_, body.system, list[str]()
    template = translated_template(body.template) if body.template else None
    if body.modelfile is not None:
        read = read_modelfile(body.modelfile)
        model, system, adapters = read.model or model, read.system or system, read.adapters
        template = read.template or template
        given += read.parameters
    if model is None:
        raise ApiError(400, "invalid_value", "from is absent: name a model", "from")
    if system is not None and len(system) > _MOST_SYSTEM:
        text = f"a system message of {len(system)} characters is too long: at most {_MOST_SYSTEM}"
        raise ApiError(400, "invalid_value", text, "system")
    sampling: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if adapters:
        options["lora"] = [_adapter_in(folder, name) for name in adapters]
    for key, value in given:
        if key == "stop":
            sampling["stop"] = [*sampling.get("stop", []), *(value if isinstance(value, list) else [value])]
        elif key in _SAMPLING:
            sampling[_SAMPLING[key]] = value
        elif key in _ENGINE:
            options[_ENGINE[key]] = value
        else:
            text = f"unsupported parameter {brief(key)}"
            raise ApiError(400, "unsupported_parameter", text, "parameters")
    for key in ("max_tokens", "seed"):
        if isinstance(sampling.get(key), int) and sampling[key] < 0:
            del sampling[key]
    preset = Preset(model, system, options, sampling, template=template)
    try:
        SamplingParams(**sampling)
        options_of_preset(preset)
    except (RequestError, TypeError, ValueError) as error:
        raise ApiError(400, "invalid_value", str(error), "parameters") from None
    return preset
