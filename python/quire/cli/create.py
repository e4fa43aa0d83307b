"""``quire create``: register a model described by an Ollama Modelfile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import LoadError, RequestError
from ..params.request_fields import ELSEWHERE
from .cp import keep_preset
from .foreign_options import ForeignCommand
from .model_argument import text_of

if TYPE_CHECKING:
    from ..server.routes.modelfile import Modelfile

__all__ = ["command"]

# Modelfile parameters that set engine options.
_ENGINE = {
    "num_ctx": "ctx-size", "num_thread": "threads", "num_gpu": "gpu-layers", "num_batch": "batch-size",
    "main_gpu": "main-gpu", "draft_num_predict": "draft-max",
}  # fmt: skip
_MODELFILE = "Modelfile"


@click.command("create", cls=ForeignCommand)
@click.argument("name")
@click.option("-f", "--file", "modelfile", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="The Modelfile [./Modelfile].")  # fmt: skip
@click.option("--from", "source", metavar="MODEL", help="Use this model instead of the one in FROM.")
@click.option("-q", "--quantize", metavar="TYPE", help="Quantize F32, F16 and BF16 weights when the model is opened.")
def command(*, name: str, modelfile: Path | None, source: str | None, quantize: str | None) -> None:
    """Register NAME for the model of a Modelfile, with its system message, parameters and adapters.

    FROM names a model, a .gguf file or a folder; paths are relative to the Modelfile.  No weights are copied.
    """
    path = Path(_MODELFILE) if modelfile is None else modelfile
    if not path.is_file():
        if modelfile is not None or source is None:
            raise LoadError(
                f"[create] Modelfile not found: {path} (name another with -f FILE, or use --from MODEL without one)"
            )
        text, folder = "", Path()
    else:
        text, folder = text_of(path), path.parent
    read = _read(text)
    model = source if source is not None else _beside(folder, read.model)
    if model is None:
        raise RequestError(f"[create] {path} has no FROM line, which names the model")
    sampling, options = _parameters(read.parameters)
    if read.ignored:
        click.echo(f"quire: [create] ignoring PARAMETER {', '.join(read.ignored)}", err=True)
    if read.adapters:
        options["lora"] = [_beside(folder, adapter) for adapter in read.adapters]
    if quantize is not None:
        options["quantize"] = quantize
    keep_preset(model, name, system=read.system, template=read.template, options=options, sampling=sampling)


def _read(text: str) -> Modelfile:
    from ..server.failures import ApiError
    from ..server.routes.modelfile import read_modelfile

    try:
        return read_modelfile(text)
    except ApiError as error:
        raise RequestError(f"[create] {error.message}") from None


def _beside(folder: Path, name: str | None) -> str | None:
    """Return the path of ``name`` relative to the Modelfile's folder if it exists, else ``name``."""
    if name is None:
        return None
    path = folder / Path(name).expanduser()
    return str(path) if path.exists() else name


def _parameters(given: list[tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split parameters into fields of ``SamplingParams`` and engine options.  RequestError for any other."""
    from ..params.sampling import SamplingParams

    sampling: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in given:
        field = ELSEWHERE.get(key, key)
        if field == "stop":
            sampling["stop"] = [*sampling.get("stop", []), value]
        elif key in _ENGINE:
            options[_ENGINE[key]] = value
        elif field in SamplingParams.__dataclass_fields__:
            if not (field in ("max_tokens", "seed") and isinstance(value, int) and value < 0):
                sampling[field] = value
        else:
            raise RequestError(f"[create] unknown PARAMETER {key!r:.80}")
    return sampling, options
