"""The options of ``quire quantize`` that choose types by measurement, and what they do."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from ..errors import RequestError
from .progress import progress_bar
from .text import note, size_text

if TYPE_CHECKING:
    from ..evaluation.costs import Costs
    from ..evaluation.recipe import Recipe
    from ..evaluation.search import Goal
    from ..gguf import GGUFReader
    from ..quantization import Importance

__all__ = ["Made", "RecipeOptions", "make_recipe", "recipe_options"]

Decorator: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """``2.4GiB``, ``900MB``, or bytes."""
    if value is None:
        return None
    found = _SIZE.fullmatch(value.strip())
    if found is None or float(found[1]) <= 0:
        raise click.BadParameter(f"must be a size, as 2.4GiB, but is {value!r:.40}", ctx, param)
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " "))


def _types(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    from .._native.core import DType
    from .._native.quant import can_quantize
    from ..errors import UnsupportedError

    names = tuple(name.strip().lower() for name in value.split(","))
    for name in names:
        try:
            known = can_quantize(DType(name))
        except UnsupportedError:
            known = False
        if not known:
            raise click.BadParameter(f"must be types with commas but has {name!r:.40}", ctx, param)
    return names


@dataclass(frozen=True)
class RecipeOptions:
    """What a recipe is to reach, over which text, and how it is looked for; see ``quire.evaluation.search``."""

    bits: float | None
    size: int | None
    max_kl: float | None
    recipe: Path | None
    calibration: Path | None
    parse_special: bool
    chunks: int
    types: tuple[str, ...] | None
    layers_together: int
    rounds: int
    curve: Path | None

    @property
    def is_wanted(self) -> bool:
        """Whether types are chosen so, and no TYPE is given.  UsageError for two goals, or for options without one."""
        goals = {"--bits": self.bits, "--size": self.size, "--max-kl": self.max_kl, "--recipe": self.recipe}
        given = [name for name, value in goals.items() if value is not None]
        if len(given) > 1:
            raise click.UsageError(f"one goal must be given but there are {' and '.join(given)}")
        if not given and (self.curve or self.types):
            raise click.UsageError(
                "--curve and --candidates need a goal, --bits, --size or --max-kl, but there is none"
            )
        if self.recipe and self.curve:
            raise click.UsageError("--curve shows what was measured but --recipe measures nothing")
        return bool(given)


@dataclass(frozen=True)
class Made:
    """A recipe with the importance that it was measured with; ``costs`` is None where nothing was measured."""

    recipe: Recipe
    importance: Importance
    costs: Costs | None
    calibration: str


_OPTIONS = (
    click.option("--bits", type=click.FloatRange(1, 32), metavar="B",
                 help="Choose the types that lose least with B bits a weight, by measurement."),
    click.option("--size", callback=_size, metavar="SIZE", help="The same with a file of SIZE (2.4GiB, 900MB)."),
    click.option("--max-kl", type=click.FloatRange(0, min_open=True), metavar="D",
                 help="Choose the smallest types that diverge by D nats a token at most."),
    click.option("--recipe", type=_FILE, metavar="FILE.gguf", help="The types that another file was given so."),
    click.option("--calibration", type=_FILE, metavar="FILE",
                 help="The text that is measured over [one that the model writes]."),
    click.option("--parse-special", is_flag=True, help="Names of control tokens in that text are those tokens."),
    click.option("--chunks", type=click.IntRange(1), default=4, show_default=True, metavar="N",
                 help="Chunks of 512 tokens of it that each trial reads."),
    click.option("--candidates", "types", callback=_types, metavar="TYPE,...", help="The types that are tried."),
    click.option("--layers-together", type=click.IntRange(1), default=1, show_default=True, metavar="N",
                 help="Layers whose matrices are tried together: N times fewer trials."),
    click.option("--rounds", type=click.IntRange(0), default=1, show_default=True, metavar="N",
                 help="How often costs are measured again, among the others."),
    click.option("--curve", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png",
                 help="Draw divergence by size, and print it."),
)  # fmt: skip


def recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the function gets them as one argument, ``recipe``."""
    names = tuple(RecipeOptions.__dataclass_fields__)

    @functools.wraps(function)
    def packed(*args: object, **values: object) -> None:
        given = {name: values.pop(name) for name in names}
        function(*args, recipe=RecipeOptions(**given), **values)  # type: ignore[arg-type]

    decorated: Callable[..., None] = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def make_recipe(options: RecipeOptions, reader: GGUFReader, importance: Importance | None, threads: int) -> Made:
    """Find a recipe, or read one; importance that is not given is measured over the calibration text."""
    from ..evaluation.calibration import calibration_from, calibration_written
    from ..evaluation.recipe import read_recipe
    from ..evaluation.search import Search, importance_over, search
    from ..gguf import GGUFReader as Reader

    engine = {"threads": threads}
    with progress_bar("calibrating") as advance:
        if options.calibration is not None:
            calibration = calibration_from(options.calibration, reader, parse_special=options.parse_special)
        else:
            calibration = calibration_written(reader, engine, max(options.chunks, 8))
        importance = importance or importance_over(reader, calibration, engine, advance)
    if options.recipe is not None:
        return Made(read_recipe(Reader(options.recipe).metadata), importance, None, calibration.name)
    how = Search(options.chunks, options.types, options.layers_together, options.rounds)
    with progress_bar("trying") as advance:
        found = search(reader, _goal(options, reader), calibration, importance, how, options=engine, on_step=advance)
    if options.curve is not None:
        _draw(options.curve, reader, found.costs, found.recipe)
    return Made(found.recipe, importance, found.costs, calibration.name)


def _head_bytes(reader: GGUFReader) -> int:
    """What a file has besides its tensors, with the recipe's own keys."""
    size = Path(reader.path).stat().st_size if reader.n_files == 1 else reader.size_bytes
    data = sum(-(-info.size_bytes // reader.alignment) * reader.alignment for info in reader.tensors)
    head = size - data if size > data else size  # a checkpoint's has no room for data
    return head + 2048 + sum(len(info.name) + 24 for info in reader.tensors)


def _goal(options: RecipeOptions, reader: GGUFReader) -> Goal:
    import math

    from ..evaluation.search import Goal

    if options.bits is not None:
        n_values = sum(math.prod(info.shape) for info in reader.tensors)
        return Goal(n_bytes=int(options.bits * n_values / 8))
    if options.size is not None:
        head = _head_bytes(reader)
        if options.size <= head:
            raise RequestError(
                f"[recipe] the size must be above that of the metadata, {head} bytes, but is {options.size}"
            )
        return Goal(n_bytes=options.size - head)
    return Goal(max_kl=options.max_kl)


def _draw(path: Path, reader: GGUFReader, costs: Costs, chosen: Recipe) -> None:
    import math

    from ..evaluation.recipe import curve, kept_bytes
    from .curve_picture import bars_of, write_picture

    n_values = sum(math.prod(info.shape) for info in reader.tensors)
    kept = kept_bytes(reader, costs)
    points = [(8 * (one.n_bytes + kept) / n_values, one.predicted) for one in curve(costs) if one.predicted > 0]
    marked = (8 * (chosen.n_bytes + kept) / n_values, chosen.measured or chosen.predicted)
    write_picture(path, points, marked)
    print("\n".join(bars_of(points)))
    note(f"wrote {path}, {size_text(path.stat().st_size)}")
