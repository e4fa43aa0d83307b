"""Write checkpoints/reading/reference_fields.json: which fields of config.json transformers knows, by class.

    python ci/make_reference_fields.py

Needs transformers and torch.  Run it under each version of transformers that Quire supports, oldest first: names that
only an older version knows stay in the table.  For each configuration class, the table has the fields that its code
reads, with their defaults, and the fields that it has but never reads.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import transformers

PACKAGE = Path(__file__).resolve().parents[1] / "python" / "quire"
OUT = PACKAGE / "checkpoints" / "reading" / "reference_fields.json"
# Fields that the base class adds to every configuration with RoPE, and to every configuration.
ROTATION = ("rope_parameters", "rope_scaling", "rope_theta", "original_max_position_embeddings")
EVERYWHERE = (
    "tie_word_embeddings", "pruned_heads", "per_layer_config", "quantization_config", "num_labels", "id2label",
    "problem_type",
)  # fmt: skip
# Functions with which a model's module reads if a token attends to later ones.
CAUSAL = ("create_causal_mask", "create_sliding_window_causal_mask", "create_chunked_causal_mask", "is_causal")
# Configuration classes of quantized checkpoints that Quire reads, by method.
METHODS = {
    "GPTQConfig": "GPTQ", "AwqConfig": "AWQ", "BitsAndBytesConfig": "BITS_AND_BYTES", "HqqConfig": "HQQ",
    "FineGrainedFP8Config": "FP8", "FbgemmFp8Config": "FBGEMM_FP8", "CompressedTensorsConfig": "COMPRESSED_TENSORS",
    "Mxfp4Config": "MXFP4",
}  # fmt: skip
# Parts of larger models that do not generate text.
OTHER_PARTS = ("vision", "audio", "image", "video", "speech")


class Names(ast.NodeVisitor):
    """Return the fields that a module reads of a configuration: as attributes, and by name."""

    def __init__(self, *, is_configuration: bool) -> None:
        self.attributes: set[str] = set()
        self.named: set[str] = set()
        self.assigned: set[str] = set()
        self.owners = ("config", "self") if is_configuration else ("config",)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not node.name.startswith("validate"):  # validation raises or changes nothing
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and ast.unparse(node.value).endswith(self.owners):
            self.attributes.add(node.attr)
        elif ast.unparse(node.value) == "self":
            self.assigned.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        owner = ast.unparse(node.args[0]) if len(node.args) > 1 else ""
        keys = node.args[:1] if function in ("kwargs.pop", "kwargs.get", "kwargs.setdefault") else []
        if function in ("getattr", "hasattr") and owner.endswith(self.owners):
            keys = node.args[1:2]
        self.named.update(key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if isinstance(node.left, ast.Constant) and ast.unparse(node.comparators[0]) == "kwargs":
            self.named.add(str(node.left.value))
        self.generic_visit(node)


@cache
def names_read(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the attributes and names read by the modules in a model's folder.

    A name also counts as read if the configuration sets an attribute from it, because config.json can override that.
    """
    of_configuration, of_model = Names(is_configuration=True), Names(is_configuration=False)
    for path in folder.glob("*.py"):
        if path.name.startswith(("configuration_", "modeling_")):
            names = of_configuration if path.name.startswith("configuration_") else of_model
            names.visit(ast.parse(path.read_text(encoding="utf-8")))
    made = of_configuration.assigned & of_model.attributes
    return (
        frozenset(of_configuration.attributes | of_model.attributes),
        frozenset(of_configuration.named | of_model.named | made),
    )


def checkpoint_classes() -> Iterator[str]:
    """Return the transformers classes that Quire converts, from the sources."""
    for path in sorted((PACKAGE / "models").glob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) != "HF":
                continue
            if isinstance(statement.value, ast.Dict):
                yield from (ast.literal_eval(key) for key in statement.value.keys if key is not None)


def defaults_of(config: type[Any]) -> dict[str, object]:
    """Return the fields of a configuration class with their defaults."""
    if dataclasses.is_dataclass(config):
        return {
            each.name: each.default if each.default is not dataclasses.MISSING else None
            for each in dataclasses.fields(config)
        }
    parameters = inspect.signature(config.__init__).parameters.values()
    return {
        each.name: None if each.default is inspect.Parameter.empty else each.default
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != "self"
    }


def plain(value: object) -> object:
    """Convert a value to JSON; None if JSON has no such value."""
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, bool | int | float | str | list | dict) else None


def settable(config: type[Any]) -> set[str]:
    """Return properties of the class that config.json can set."""
    own = set(dir(config)) - set(dir(transformers.PretrainedConfig))
    found = {name for name in own if isinstance(inspect.getattr_static(config, name), property)}
    return {name for name in found if inspect.getattr_static(config, name).fset is not None and name[0] != "_"}


def read_by(config: type[Any]) -> tuple[set[str], set[str]]:
    """Return the fields that a configuration class and its model read, and the fields' other names."""
    folder = Path(inspect.getfile(config)).parent
    attributes, named = names_read(folder)
    if dict(sections_of(config)):  # its other names belong to its parts
        names = Names(is_configuration=True)
        names.visit(ast.parse(textwrap.dedent(inspect.getsource(config))))
        named = frozenset(names.named)
    elif any(word in path.read_text(encoding="utf-8") for path in folder.glob("modeling_*.py") for word in CAUSAL):
        named |= {"is_causal"}
    return {*attributes, *named}, {*named, *settable(config)}


def described(config: type[Any]) -> dict[str, object]:
    """Return the table's entry for a configuration class."""
    defaults = defaults_of(config)
    aliases: dict[str, str] = config.attribute_map
    read, named = read_by(config)
    read |= {name for alias, name in aliases.items() if alias in read}
    effect = {name: default for name, default in defaults.items() if name in read}
    effect |= {name: None for name in named - set(defaults) if name in settable(config) or not hasattr(config, name)}
    effect |= {alias: defaults.get(name) for alias, name in aliases.items() if name in effect}
    rotates = not {"rope_parameters", "rope_theta", "rope_scaling"}.isdisjoint(defaults)
    effect |= {name: defaults.get(name) for name in (*EVERYWHERE, *(ROTATION if rotates else ()))}
    own = set(defaults_of(transformers.PretrainedConfig))
    return {
        "model_type": config.model_type,
        "effect": {name: plain(value) for name, value in sorted(effect.items())},
        "none": sorted((set(defaults) | set(aliases)) - set(effect) - own),
        "sections": {name: inner.__name__ for name, inner in sections_of(config)},
    }


def sections_of(config: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Return the fields that hold a nested configuration, with its class."""
    for name, inner in config.sub_configs.items():
        if not name.startswith(OTHER_PARTS) and inner is not transformers.AutoConfig:
            yield name, inner


def names_of_rotation() -> list[str]:
    """Return the RoPE parameters that any module reads."""
    package = Path(transformers.__file__).parent
    found: set[str] = set()
    for path in [package / "modeling_rope_utils.py", *package.glob("models/*/*.py")]:
        if "rope" not in (text := path.read_text(encoding="utf-8")):
            continue
        for node in ast.walk(ast.parse(text)):
            owner, key = None, None
            if isinstance(node, ast.Subscript):
                owner, key = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                owner, key = node.func.value, node.args[0]
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or owner is None:
                continue
            if ast.unparse(owner).rpartition(".")[2].startswith("rope_"):
                found.add(key.value)
    return sorted(found)


def quantizations() -> Iterator[tuple[str, list[str]]]:
    """Return the fields of ``quantization_config`` by method."""
    from transformers.utils import quantization_config as module

    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__name__.endswith("Config") and kind.__module__ == module.__name__:
            names = list(inspect.signature(kind.__init__).parameters)
            method = getattr(module.QuantizationMethod, METHODS.get(kind.__name__, ""), None)
            if method is not None:
                yield str(method.value), sorted(set(names) - {"self", "kwargs"} | {"quant_method"})


def with_sections(config: type[Any]) -> Iterator[type[Any]]:
    yield config
    for _, inner in sections_of(config):
        yield from with_sections(inner)


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge an entry with an older one, keeping names that only the older one has."""
    known = {*new["effect"], *new["none"]}
    effect = {name: value for name, value in old["effect"].items() if name not in known} | new["effect"]
    none = {name for name in old["none"] if name not in known} | set(new["none"])
    return {
        "model_type": new["model_type"],
        "effect": dict(sorted(effect.items())),
        "none": sorted(none),
        "sections": old["sections"] | new["sections"],
    }


def written(table: dict[str, Any]) -> str:
    """Format as JSON with one line per name."""
    parts = []
    for part, values in sorted(table.items()):
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(values.items())]
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    old: dict[str, Any] = json.loads(OUT.read_text()) if OUT.is_file() else {}
    parts = ("classes", "configs", "names", "quantizations")
    table: dict[str, dict[str, Any]] = {part: old.get(part, {}) for part in parts}
    configs: dict[str, type[Any]] = {}
    for name in checkpoint_classes():
        kind = getattr(transformers, name, None)
        if kind is None or getattr(kind, "config_class", None) is None:
            continue
        table["classes"][name] = kind.config_class.__name__
        configs |= {config.__name__: config for config in with_sections(kind.config_class)}
    for name, config in configs.items():
        new = described(config)
        table["configs"][name] = merged(table["configs"].get(name, new), new)
    for method, names in quantizations():
        table["quantizations"][method] = sorted({*table["quantizations"].get(method, []), *names})
    names = table["names"]
    names["rotation"] = sorted({*names.get("rotation", []), *names_of_rotation()})
    names["versions"] = sorted({*names.get("versions", []), transformers.__version__})
    OUT.write_text(written(table), encoding="utf-8")
    print(f"{len(table['classes'])} classes, {len(table['configs'])} configurations")


if __name__ == "__main__":
    main()
