"""``quire pull``: download a model."""

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
@click.option("-hft", "--hf-token", metavar="TOKEN", help="Your token for gated models [HF_TOKEN].")
@click.option("--no-mmproj", is_flag=True, help="Leave out the encoder of images, an mmproj file.")
def command(*, name: str, hf_token: str | None, no_mmproj: bool) -> None:
    """Download NAME: org/name, org/name:QUANT, a Hugging Face URL, or a short name such as qwen3:0.6b.

    Without QUANT, Q4_K_M is preferred, then Q8_0, then the first file, if it fits in memory; else the largest file that
    fits is used.  A model that reads images comes with its encoder, an mmproj file.  Interrupted downloads resume.
    HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are respected.
    """
    if hf_token is not None:
        os.environ["HF_TOKEN"] = hf_token
    preset = preset_of(name)
    wanted = repository_of(name if preset is None else preset.model)
    if wanted is None:
        raise RequestError(f"[pull] unknown model {name!r:.80}: give org/name or a short name (docs/registry.md)")
    print(fetched(wanted, projector=not no_mmproj))
