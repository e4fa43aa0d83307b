"""Write what is made of the declarations of parameters: run it after changing python/quire/params/.

    PYTHONPATH=python python ci/make_params.py [--check]

It writes the native struct with its limits, the lists of names and types between marks in Python files, and the table
in docs/sampling.md.  ``--check`` writes nothing, and names the files that are out of date.
"""

from __future__ import annotations

import re
import sys
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from quire.params.chat_options import CHAT_OPTIONS, ChatOptions  # noqa: E402
from quire.params.parameter import Parameter  # noqa: E402
from quire.params.rules import INT_MAX, Bias, Bool, Float, Ids, Int, Names, Rule, Seed, Strings  # noqa: E402
from quire.params.sampling import DEFAULT_SAMPLERS, PARAMETERS, SamplingParams  # noqa: E402

FIELDS = {entry.name: entry for entry in fields(SamplingParams)}
NATIVE = {name: parameter for name, parameter in PARAMETERS.items() if parameter.native}
HEADER = "native/engine/sampling/sampling_fields.h"
CPP_HEAD = """// Written by ci/make_params.py from python/quire/params/sampling.py: do not edit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sampling/parameter_limits.h"

namespace quire {
"""


def default_of(entry: Field[Any]) -> object:
    """The default of a field."""
    return entry.default if entry.default is not MISSING else entry.default_factory()  # type: ignore[misc]


# C++


def cpp_type(rule: Rule) -> str:
    """The type of a native field, without the optional around it."""
    kinds = {Int: "int32_t", Seed: "uint64_t", Float: "float", Bool: "bool", Strings: "std::vector<std::string>",
             Ids: "std::vector<int32_t>", Bias: "std::vector<std::pair<int32_t, float>>",
             Names: "std::vector<SamplingStage>"}  # fmt: skip
    return kinds[type(rule)]


def cpp_range(low: float, high: float, *, open_below: bool = False) -> str:
    """The initializer of the limits of a number."""
    if high in (float("inf"), INT_MAX):
        return f"above({low:g})" if open_below else f"at_least({low:g})"
    return f"range({low:g}, {high:g})"


def cpp_limits(rule: Rule) -> str:
    """The initializer of the limits of a rule."""
    match rule:
        case Int():
            return cpp_range(rule.low, rule.high)
        case Float():
            return cpp_range(rule.low, rule.high, open_below=rule.open_below)
        case Strings():
            return f"TextLimits{{{rule.n}, {rule.n_bytes}}}"
        case Ids():
            return f"IdLimits{{{rule.n}, {str(rule.optional).lower()}}}"
        case Bias():
            return f"BiasLimits{{{rule.n}, {cpp_range(rule.low, rule.high)}}}"
        case _:
            return "NoLimits{}"


def cpp_value(rule: Rule, value: object) -> str:
    """The initializer of a default; empty if it is the type's own."""
    if value is None or value in ((), {}):
        return ""
    if isinstance(rule, Names):
        return " = default_sampling_order()"
    if isinstance(value, tuple):
        texts = ", ".join('"' + text.encode("unicode_escape").decode().replace('"', '\\"') + '"' for text in value)
        return f" = {{{texts}}}"
    if isinstance(rule, Float):
        return f" = {value!r}f"
    return f" = {str(value).lower()}"


def cpp_field(name: str, parameter: Parameter) -> str:
    """The declaration of a native field."""
    kind = cpp_type(parameter.rule)
    kind = f"std::optional<{kind}>" if parameter.rule.optional else kind
    return f"    {kind} {name}{cpp_value(parameter.rule, default_of(FIELDS[name]))};"


def cpp_active(stage: str) -> str:
    """The condition under which a stage changes anything: a field of it has another value than the default."""
    found = [
        f"p.{name}.has_value()" if default_of(FIELDS[name]) is None else f"p.{name} != usual.{name}"
        for name, parameter in NATIVE.items()
        if parameter.stage == stage
    ]
    return " || ".join(found)


def header() -> str:
    """The native struct, its limits and the stages of the chain."""
    stages = "\n".join(f"    {stage}," for stage in DEFAULT_SAMPLERS)
    names = "\n".join(f'    "{stage}",' for stage in DEFAULT_SAMPLERS)
    members = "\n".join(cpp_field(name, parameter) for name, parameter in NATIVE.items())
    visits = "\n".join(
        f'    visit("{name}", &SamplingFields::{name}, {cpp_limits(parameter.rule)});'
        for name, parameter in NATIVE.items()
    )
    cases = "\n".join(f"    case SamplingStage::{stage}: return {cpp_active(stage)};" for stage in DEFAULT_SAMPLERS)
    return f"""{CPP_HEAD}
// The stages of the sampling chain, in the default order.
enum class SamplingStage {{
{stages}
}};

inline constexpr std::array<const char *, {len(DEFAULT_SAMPLERS)}> sampling_stage_names = {{
{names}
}};

const std::vector<SamplingStage> &default_sampling_order();

// Defaults leave the model's distribution as it is.
struct SamplingFields {{
{members}
}};

// Calls visit(name, pointer to member, limits) for every field.
template <typename Visit> void visit_sampling_fields(const Visit &visit) {{
{visits}
}}

// True if the stage changes anything with these parameters.
inline bool is_active(SamplingStage stage, const SamplingFields &p) {{
    static const SamplingFields usual;
    switch (stage) {{
{cases}
    }}
    return false;
}}

}} // namespace quire
"""


# Python and documentation


def type_lines(names: dict[str, str]) -> str:
    """The fields of a class, without defaults."""
    return "".join(f"    {name}: {kind}\n" for name, kind in names.items())


def typed_dict() -> str:
    """The keywords of calls that generate."""
    return type_lines({name: str(entry.type) for name, entry in FIELDS.items()})


def chat_fields() -> str:
    """The keywords of chats, without ``tools``, whose type depends on the call."""
    kinds = {entry.name: str(entry.type) for entry in fields(ChatOptions)}
    names = [name for name, option in CHAT_OPTIONS.items() if option.keyword and name != "tools"]
    return type_lines({name: kinds[name] for name in names})


def stub() -> str:
    """The attributes of the native class."""
    kinds = {name: str(FIELDS[name].type).replace("str | Sequence[str]", "Sequence[str]") for name in NATIVE}
    kinds["logit_bias"] = "Sequence[tuple[int, float]]"
    return type_lines(kinds)


def table() -> str:
    """The table of docs/sampling.md."""
    lines = ["| parameter | default | command line | meaning |\n", "|---|---|---|---|\n"]
    for name, parameter in PARAMETERS.items():
        default = "see below" if name == "samplers" else f"`{default_of(FIELDS[name])!r}`"
        flag = next((flag for flag in parameter.flags.split() if flag.startswith("--")), "")
        option = f"`{flag}`" if flag else ""
        usual = parameter.chat if parameter.chat is not None else parameter.unset.get("command")
        option += f" ({usual:g})" if usual is not None else ""
        option += ", -1 for `None`" if parameter.none and flag else ""
        text = re.sub(r"(\w+\.md)", r"[\1](\1)", parameter.text).replace("; None:", "; `None`:")
        lines.append(f"| `{name}` | {default} | {option} | {text} |\n".replace("|  |", "| |"))
    return "".join(lines)


def between(path: str, name: str, text: str, comment: str = "    # ") -> tuple[str, str]:
    """A file with new text between its marks."""
    begin, end = (f"{comment}{word} {name}" for word in ("BEGIN", "END"))
    whole = (ROOT / path).read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(begin)}[^\n]*\n(.*?)^{re.escape(end)}", whole, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"{path} lacks the mark {begin!r}")
    return path, whole[: found.start(1)] + text + whole[found.end(1) :]


def pages() -> dict[str, str]:
    """All written files by path."""
    return dict(
        [
            (HEADER, header()),
            between("python/quire/params/request_fields.py", "SamplingParams", typed_dict()),
            between("python/quire/params/chat_options.py", "ChatOptions", chat_fields()),
            between("python/quire/_native/engine.pyi", "SamplingParams", stub()),
            between("docs/sampling.md", "parameters", "\n" + table() + "\n", "<!-- "),
        ]
    )


def current(path: str) -> str:
    """The file as it is; empty if it does not exist yet."""
    return (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""


def main() -> None:
    """See the module."""
    stale = {path: text for path, text in pages().items() if text != current(path)}
    if "--check" in sys.argv[1:]:
        if stale:
            raise SystemExit(f"out of date: {', '.join(stale)} (run ci/make_params.py)")
        return
    for path, text in stale.items():
        (ROOT / path).write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
