"""``quire pull``: a model from a hub onto this machine."""

from __future__ import annotations

import os

import click

from ..errors import RequestError
from ..hub.locate import preset_of, repository_of
from .fetching import fetched
from .foreign_options import ForeignCommand

__all__ = ["command"]


@click.command("pull", cls=ForeignCommand)
@click.argument("name")
@click.option("-hft", "--hf-token", metavar="TOKEN", help="For models that are not open to all [HF_TOKEN].")
def command(*, name: str, hf_token: str | None) -> None:
    """Fetch NAME: org/name, org/name:QUANT, an address of Hugging Face, or a short name such as qwen3:0.6b.

    Without a quantization it is Q4_K_M, else Q8_0, else the first, if it fits into the machine's memory, and else the
    largest that does.  What was begun goes on.  HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are heeded.
    """
    if hf_token is not None:
        os.environ["HF_TOKEN"] = hf_token
    preset = preset_of(name)
    wanted = repository_of(name if preset is None else preset.model)
    if wanted is None:
        raise RequestError(
            f"[pull] NAME must be org/name or one of the short names but is {name!r:.80} (docs/registry.md)"
        )
    print(fetched(wanted))
