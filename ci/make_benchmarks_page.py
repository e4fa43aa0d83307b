"""Write docs/benchmarks.md and its charts from the benchmarks' results.

    python ci/make_benchmarks_page.py [--check]       # --check: fail if they are out of date

benchmarks/results/ has one file per machine in the format of benchmarks/compare_llama_cpp.py --json, with the date and
a description of the machine.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
WORK = {
    "prefill-512": "a prompt of 512 tokens",
    "prefill-4096": "a prompt of 4096 tokens",
    "decode": "an answer",
    "decode-4k": "generation after 4096 tokens",
    "streams-8": "8 users, each after 1024 tokens",
    "shared-32": "32 users after the same 1024 tokens",
}
PROGRAMS = {
    "llama_cpp": ("llama.cpp", "#9e9e9e"),
    "openvino": ("OpenVINO GenAI", "#ef6c00"),
    "quire": ("Quire", "#00796b"),
}
HEAD = """# Benchmarks

The charts show tokens per second, summed over all streams: medians with two threads. llama.cpp and Quire ran the same
files in alternation on one machine; the figures of OpenVINO GenAI are some days older. Each chart has its own scale.
`benchmarks/README.md` in the source describes the methods, the uncertainty, and results on other machines.
`ci/make_benchmarks_page.py` writes this page and its charts from `benchmarks/results`.
"""
WIDTH, PANEL, LEFT, RIGHT, BAR = 860, 400, 70, 56, 12


@dataclass(frozen=True)
class Bar:
    """A program's speed with one type of weights."""

    dtype: str
    program: str
    tokens_s: float


def bars_of(results: list[dict[str, Any]], model: str, row: str) -> list[Bar]:
    return [
        Bar(result["dtype"], program, statistics.median(result[program]))
        for result in results
        if (result["model"], result["row"]) == (model, row)
        for program in PROGRAMS
        if result[program]
    ]


def panel(x: float, y: float, title: str, bars: list[Bar]) -> tuple[list[str], float]:
    """Draw the bars of one kind of work; return them and their height."""
    top = y
    lines = [f'<text x="{x + LEFT:.0f}" y="{y + 12:.0f}" font-weight="600">{title}</text>']
    y += 22
    longest = max(bar.tokens_s for bar in bars)
    shown = ""
    for bar in bars:
        if bar.dtype != shown:
            y += 5 if shown else 0
            shown = bar.dtype
            lines.append(f'<text x="{x + LEFT - 6:.0f}" y="{y + 10:.0f}" text-anchor="end">{bar.dtype}</text>')
        width = (PANEL - LEFT - RIGHT) * bar.tokens_s / longest
        color = PROGRAMS[bar.program][1]
        lines.append(
            f'<rect x="{x + LEFT:.0f}" y="{y:.0f}" width="{width:.1f}" height="{BAR - 2}" fill="{color}"/>'
            f'<text x="{x + LEFT + width + 4:.1f}" y="{y + 9:.0f}" class="s">{bar.tokens_s:.1f}</text>'
        )
        y += BAR
    return lines, y - top + 18


def chart(results: list[dict[str, Any]], model: str) -> str:
    """Draw all kinds of work in two columns."""
    lines, y = [], 44.0
    x = 16
    for program, color in PROGRAMS.values():
        lines.append(
            f'<rect x="{x}" y="14" width="12" height="12" fill="{color}"/><text x="{x + 18}" y="24">{program}</text>'
        )
        x += 40 + 8 * len(program)
    rows = [(title, bars) for row, title in WORK.items() if (bars := bars_of(results, model, row))]
    for i in range(0, len(rows), 2):
        heights = []
        for column, (title, bars) in enumerate(rows[i : i + 2]):
            drawn, height = panel(16 + column * (PANEL + 20), y, title, bars)
            lines += drawn
            heights.append(height)
        y += max(heights)
    label = f"Tokens per second of {model}, by kind of work and type of weights"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:.0f}" role="img" aria-label="{label}" '
            'font-family="system-ui, sans-serif" font-size="12">',
            "<style>text{fill:#222}.s{font-size:10px;fill:#555}</style>",
            f'<rect width="{WIDTH}" height="{y:.0f}" fill="#fff" rx="8"/>',
            *lines,
            "</svg>",
            "",
        ]
    )


USERS = {"decode": "1 user", "streams-8": "8 users", "shared-32": "32 users"}


def users_chart(results: list[dict[str, Any]], model: str, dtype: str) -> str:
    """Draw Quire and llama.cpp by the number of users, for the README."""
    height, lines = 190, []
    found = {row: {bar.program: bar for bar in bars_of(results, model, row) if bar.dtype == dtype} for row in USERS}
    longest = max(bars["quire"].tokens_s for bars in found.values())
    y = 44
    for row, title in USERS.items():
        lines.append(f'<text x="84" y="{y + 22}" text-anchor="end">{title}</text>')
        for program in ("llama_cpp", "quire"):
            tokens_s, (_, color) = found[row][program].tokens_s, PROGRAMS[program]
            width = 560 * tokens_s / longest
            lines.append(
                f'<rect x="94" y="{y}" width="{width:.1f}" height="14" fill="{color}"/>'
                f'<text x="{100 + width:.1f}" y="{y + 12}">{tokens_s:.0f}</text>'
            )
            y += 17
        y += 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" '
            f'aria-label="Tokens per second of {model}, {dtype}, by number of users" '
            'font-family="system-ui, sans-serif" font-size="13">',
            "<style>text{fill:#222}</style>",
            f'<rect width="720" height="{height}" fill="#fff" rx="8"/>',
            f'<text x="16" y="26" font-weight="600">Tokens a second, {model} {dtype}, two CPU cores</text>',
            f'<rect x="470" y="15" width="12" height="12" fill="{PROGRAMS["llama_cpp"][1]}"/>'
            '<text x="488" y="26">llama.cpp</text>'
            f'<rect x="570" y="15" width="12" height="12" fill="{PROGRAMS["quire"][1]}"/>'
            '<text x="588" y="26">Quire</text>',
            *lines,
            "</svg>",
            "",
        ]
    )


def pages() -> dict[Path, str]:
    """Return the contents of the page's files."""
    text, made = HEAD, {}
    for path in sorted(RESULTS.glob("*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        text += f"\n## {report['machine']}, {report['date']}\n"
        made[DOCS / "pictures" / f"users_{path.stem}_qwen3-0.6b.svg"] = users_chart(
            report["results"], "qwen3-0.6b", "Q4_K_M"
        )
        for model in dict.fromkeys(result["model"] for result in report["results"] if result["row"] in WORK):
            name = f"benchmarks_{path.stem}_{model}.svg"
            made[DOCS / "pictures" / name] = chart(report["results"], model)
            text += f"\n### {model}\n\n![Tokens per second of {model}](pictures/{name})\n"
    return {DOCS / "benchmarks.md": text, **made}


def main() -> None:
    """Write the page and its charts, or check them."""
    made = pages()
    if "--check" not in sys.argv:
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
        return
    other = [path.name for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if other:
        raise SystemExit(f"{', '.join(other)} out of date: run ci/make_benchmarks_page.py")


if __name__ == "__main__":
    main()
