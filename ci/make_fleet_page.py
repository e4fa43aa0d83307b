"""Write docs/fleet.md and its charts from benchmarks/fleet/results.json.

    python ci/make_fleet_page.py [--check]       # --check: fail if they are out of date

The results are what benchmarks/simulate_fleet.py writes with --json: ``check``, and lists of rows.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "fleet" / "results.json"
DOCS = ROOT / "docs"
ROUTERS = {"random": ("at random", "#9e9e9e"), "least": ("least loaded", "#ef6c00"), "prefix": ("prefix", "#00796b")}
WORK = {"chat": "chats", "agents": "coding agents"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 420, 260, 56, 34, 40
HEAD = """# A fleet, computed

How do hundreds of replicas behave behind the router of [`quire route`](several_servers.md)? Nobody here has them, so
they are computed: `benchmarks/simulate_fleet.py` runs Quire's own scheduler, cache and router on a simulated clock.
Only the model is replaced, by what its steps cost. All figures on this page come from that, unless they say
otherwise.

- **Replicas**: Qwen3-8B's shape in Q4_K_M on one NVIDIA H200. The times of steps are fitted to measured speeds of 1,
  8 and 32 answers and of prompts. Attention of long prompts (150 TFLOPS) and the time of a request (1 ms) were not
  measured.
- **Chats**: conversations with the statistics of Mooncake's trace of the same name (FAST '25): prompts of 12 000
  tokens, answers of 340, 41 % of the prompts' tokens found in an unlimited cache. A good answer begins within 5 s,
  and takes at most 0.1 s per token.
- **Coding agents**: sessions with the statistics of GitHub Copilot's traces of June 2026: 31 calls per session,
  prompts of 68 000 tokens, answers of 530. A good answer begins within 10 s. Pauses between calls were not published;
  here 4 s, and 90 s where a person reads.
- **Routers**: at random; to the replica with the fewest requests; by prefix, which is what `quire route` does.
- A load is new sessions per second and replica.
"""


def chart(rows: Sequence[dict[str, Any]], x: str, y: str, title: str, most: float) -> str:
    """Return a chart with a line for each router; the values of ``x`` stand at equal distances."""
    xs = sorted({row[x] for row in rows})
    right, low = WIDTH - 12, HEIGHT - BOTTOM
    at = {value: LEFT + (right - LEFT) * (i / max(1, len(xs) - 1)) for i, value in enumerate(xs)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="16" font-weight="bold">{title}</text>',
    ]
    for i in range(5):
        value, level = most * i / 4, low - (low - TOP) * i / 4
        parts.append(f'<path d="M{LEFT} {level:.1f}H{right}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in xs:
        parts.append(f'<text x="{at[value]:.1f}" y="{low + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{x}</text>')
    for i, (router, (name, color)) in enumerate(ROUTERS.items()):
        points = [(at[row[x]], low - (low - TOP) * min(1.0, row[y] / most)) for row in rows if row["router"] == router]
        if points:
            path = " ".join(f"{'L' if j else 'M'}{px:.1f} {py:.1f}" for j, (px, py) in enumerate(points))
            parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 8 + 100 * i}" y="{TOP - 6}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def table(rows: Sequence[dict[str, Any]], first: str, name: str) -> list[str]:
    """Return a table of all rows."""
    lines = [
        f"| {name} | router | requests | found in caches | good | good per s and replica "
        "| first token p50, p90, p99 | per token p50, p99 | busy |",
        "|---:|---|---:|---:|---:|---:|---|---|---:|",
    ]
    for row in rows:
        begin = ", ".join(f"{value:.2f}" for value in row["first_s"])
        each = ", ".join(f"{1e3 * value:.1f}" for value in row["token_s"])
        lines.append(
            f"| {row[first]:g} | {ROUTERS[row['router']][0]} | {row['n']} | {100 * row['hits']:.1f} % "
            f"| {100 * row['good_share']:.1f} % | {row['good_per_s']:.3f} | {begin} s | {each} ms "
            f"| {100 * row['busy']:.0f} % |"
        )
    return lines


def left_out(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line about routers that were not computed for all sizes."""
    sizes = {router: {row["replicas"] for row in rows if row["router"] == router} for router in ROUTERS}
    of_all = set().union(*sizes.values())
    missing = [
        f"{ROUTERS[router][0]} with {', '.join(map(str, sorted(of_all - own)))} replicas"
        for router, own in sizes.items()
        if of_all - own
    ]
    return [f"Not computed: {'; '.join(missing)}.", ""] if missing else []


def pages() -> dict[Path, str]:
    """Return the page and its charts."""
    results: dict[str, Any] = json.loads(RESULTS.read_text())
    found: dict[Path, str] = {}
    text = [HEAD]
    for work, name in WORK.items():
        loads, fleets = results[f"loads_{work}"], results[f"fleets_{work}"]
        most = max(row["good_per_s"] for row in loads) * 1.1
        of_loads = chart(loads, "load", "good_per_s", "Good answers per second and replica", most)
        of_fleets = chart(fleets, "replicas", "hits", "Share of prompts found in caches", 1.0)
        found[DOCS / "pictures" / f"fleet_{work}_loads.svg"] = of_loads
        found[DOCS / "pictures" / f"fleet_{work}_sizes.svg"] = of_fleets
        n = loads[0]["replicas"]
        text += [
            f"## {name.capitalize()}",
            "",
            f"![Good answers under growing load](pictures/fleet_{work}_loads.svg)",
            f"![Prompts found in caches, by the size of the fleet](pictures/fleet_{work}_sizes.svg)",
            "",
            f"{n} replicas under growing load:",
            "",
            *table(loads, "load", "load"),
            "",
            f"Fleets of growing size, load {fleets[0]['load']:g}:",
            "",
            *table(fleets, "replicas", "replicas"),
            "",
            *left_out(fleets),
        ]
    text += errors(results)
    found[DOCS / "fleet.md"] = "\n".join(text)
    return found


_VALUES: tuple[Callable[[dict[str, Any]], float], ...] = (
    lambda row: 100 * row["hits"],
    lambda row: 100 * row["good_share"],
    lambda row: row["first_s"][0],
)


def errors(results: dict[str, Any]) -> list[str]:
    """Return what is known of the error."""
    check = results["check"]
    computed, measured = check["computed"], check["measured"]
    lines = [
        "## How far off it is",
        "",
        "- 32 clients of one replica with prompts of 512 and answers of 128 tokens: computed "
        f"{computed:.0f} tokens per second, measured {measured} on the H200, {100 * (computed / measured - 1):+.1f} %.",
        "- From 256 replicas on, and for all coding agents, 8 tokens count as one. The same 16 replicas with 1 and "
        "8, load 0.25, means of three seeds:",
        "",
        "| router | found in caches | good | first token p50 |",
        "|---|---|---|---|",
    ]
    for router, (name, _) in ROUTERS.items():
        cells = []
        for value in _VALUES:
            of_router = [row for row in check["scales"] if row["router"] == router]
            means = [statistics.mean(value(row) for row in of_router if row["scale"] == scale) for scale in (1, 8)]
            cells.append(f"{means[0]:.3g}, {means[1]:.3g}")
        lines.append(f"| {name} | {cells[0]} % | {cells[1]} % | {cells[2]} s |")
    lines += [
        "",
        "- Fleets above 1024 replicas have caches with blocks of 128 tokens instead of 32, to need less memory. With "
        "128 replicas and the prefix router, this finds 31.5 % of the prompts' tokens in caches instead of 32.5 %.",
    ]
    return [*lines, "", *(beside_replicas(results["replicas"]) if "replicas" in results else ())]


_FIGURES: tuple[tuple[str, Callable[[dict[str, Any]], float]], ...] = (
    ("{:.1f} %", lambda report: 100 * report["hits"]),
    ("{:.1f} %", lambda report: 100 * report["good_share"]),
    ("{:.2f}", lambda report: report["good_per_s"]),
    ("{:.0f} ms", lambda report: 1e3 * report["first_s"][0]),
    ("{:.0f} ms", lambda report: 1e3 * report["first_s"][1]),
    ("{:.2f} ms", lambda report: 1e3 * report["token_s"][0]),
)


def beside_replicas(found: dict[str, Any]) -> list[str]:
    """Return the comparison with real servers."""
    sizes = sorted({row["replicas"] for row in found["rows"]})
    n_seeds = len({row["seed"] for row in found["rows"]})
    lines, worst = [], dict.fromkeys(("hits", "good_per_s", "first_s"), 0.0)
    for n in sizes:
        of_size = [row for row in found["rows"] if row["replicas"] == n]
        means = {}
        for kind in ("computed", "measured"):
            means[kind] = [statistics.mean(value(row[kind]) for row in of_size) for _, value in _FIGURES]
            cells = [text.format(value) for (text, _), value in zip(_FIGURES, means[kind], strict=True)]
            lines.append(f"| {n} | {kind} | {' | '.join(cells)} |")
        pairs = list(zip(means["computed"], means["measured"], strict=True))
        worst["hits"] = max(worst["hits"], abs(pairs[0][0] - pairs[0][1]))
        for name, (one, other) in (("good_per_s", pairs[2]), ("first_s", pairs[3])):
            worst[name] = max(worst[name], abs(one / other - 1) if other else 1.0)
    return [
        "Real servers: the package's model on one machine, a thread each, behind `quire route`. Costs are fitted to "
        "one server, and to how much several slow each other down. The same sessions were computed and sent; "
        f"{'one seed' if n_seeds == 1 else f'means of {n_seeds} seeds'}. "
        f"A good answer begins within {found['first_token_s']:g} s and takes at most "
        f"{1e3 * found['token_s']:g} ms per token.",
        "",
        f"The largest errors: {worst['hits']:.1f} percentage points of what is found in caches, "
        f"{100 * worst['good_per_s']:.0f} % of the good answers per second, "
        f"{100 * worst['first_s']:.0f} % of the time to the first token (p50).",
        "",
        "| replicas | | found in caches | good | good per s and replica | first token p50 | p90 | per token p50 |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
        *lines,
        "",
    ]


def main() -> None:
    stale = False
    for path, text in pages().items():
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                print(f"{path.relative_to(ROOT)} is out of date: python ci/make_fleet_page.py")
                stale = True
        else:
            path.write_text(text)
    sys.exit(stale)


if __name__ == "__main__":
    main()
