"""Shell completion of model names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["complete_model"]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a model name from the models on this machine and the short names; then files."""
    from ..hub.registry import Registry
    from ..hub.short_names import SHORT_NAMES
    from ..hub.stores import stored_models

    short = [f"{name}:{tag}" for name, tags in SHORT_NAMES.items() for tag in tags]
    names = dict.fromkeys([*Registry().presets, *(model.name for model in stored_models()), *short])
    fitting = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    # For an empty word, offer only what is on this machine: the table of short names is long.
    known = fitting if incomplete else [item for item in fitting if item.value not in short]
    return [*known, CompletionItem(incomplete, type="file")]
