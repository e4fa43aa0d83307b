"""A fleet that is computed: Quire's scheduler, cache and router on a simulated clock, with measured costs of steps.

    python benchmarks/simulate_fleet.py fleets [--sizes 1,4,16,64,256] [--workload chat] [--load 0.25] [--json OUT]
    python benchmarks/simulate_fleet.py loads [--replicas 16] [--json OUT]
    python benchmarks/simulate_fleet.py check [--json OUT]

``fleets``: growing fleets under the same load per replica, with each router.  ``loads``: one fleet under growing loads.
``check``: how far the costs are from what was measured on the GPU, and what counting several tokens as one changes.
``benchmarks/fleet_beside_replicas.py`` compares with real servers.  A ``load`` is new sessions per second and replica.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from array import array
from pathlib import Path
from typing import Any

from fleet.costs import H200_8B
from fleet.replica import Call, SimulatedReplica
from fleet.simulation import ROUTERS, Fleet
from fleet.workloads import WORKLOADS, Session

WARM_S = {"chat": 60.0, "agents": 240.0}
LAST_S = {"chat": 180.0, "agents": 480.0}
LOADS = {"chat": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4), "agents": (0.02, 0.03, 0.04, 0.05, 0.06)}
MOST_EXACT = 1024  # replicas whose caches have blocks of 32 tokens: larger fleets would need too much memory
SERVED = 1440  # tokens per second of answers: 32 clients, prompts of 512, answers of 128 (benchmarks/README.md)


def row(workload: str, n: int, load: float, router: str, scale: int, seed: int = 1) -> dict[str, Any]:
    """Simulate a fleet; return its figures."""
    began_s = time.process_time()
    fleet = Fleet(
        H200_8B, WORKLOADS[workload], n, load, router, scale, seed, block_tokens=128 if n > MOST_EXACT else 32
    )
    report = fleet.run(WARM_S[workload], LAST_S[workload])
    found = {"workload": workload, "replicas": n, "load": load, "router": router, "scale": scale}
    found |= dataclasses.asdict(report) | {"cpu_s": time.process_time() - began_s}
    first, token = report.first_s, report.token_s
    texts = (
        f"{workload:6} {n:5} replicas, load {load:<5} {router:6} n {report.n:7}  hits {report.hits:.3f}",
        f"good {report.good_share:.3f} {report.good_per_s:.3f}/s",
        f"first {first[0]:.2f} {first[1]:.2f} {first[2]:.2f} s",
        f"token {1e3 * token[0]:.1f} {1e3 * token[1]:.1f} ms",
        f"busy {report.busy:.2f}  {found['cpu_s']:.0f} s of CPU",
    )
    print("  ".join(texts), flush=True)
    return found


def served() -> float:
    """Return the tokens per second of one replica with 32 clients, as the GPU's benchmark has them."""
    replica, now_s, n_done, numbers = SimulatedReplica(0, H200_8B), 0.0, 0, 0
    waiting = 32
    while n_done < 512 or replica.calls:
        while waiting and n_done < 512:
            numbers += 1
            session = Session.__new__(Session)
            session.tokens = array("i", range(numbers * 1000, numbers * 1000 + 512))
            replica.submit(Call(session, now_s, 512, 128), now_s)
            waiting, n_done = waiting - 1, n_done + 1
        end_s = replica.begin(now_s)
        assert end_s is not None
        now_s = end_s
        waiting += len(replica.end(now_s))
    return 512 * 128 / now_s


def check() -> dict[str, Any]:
    computed = served()
    error = computed / SERVED - 1
    print(f"32 clients of one replica: computed {computed:.0f} tokens/s, measured {SERVED}: {error:+.1%}")
    rows = [row("chat", 16, 0.25, router, scale, seed) for router in ROUTERS for scale in (1, 8) for seed in (1, 2, 3)]
    return {"computed": computed, "measured": SERVED, "scales": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fleets", "loads", "check"))
    parser.add_argument("--sizes", default="1,4,16,64,256")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="chat")
    parser.add_argument("--load", type=float, default=0.25)
    parser.add_argument("--scale", type=int, help="tokens counted as one; without it, 1 up to 64 replicas, then 8")
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--routers", default=",".join(ROUTERS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    routers = args.routers.split(",")
    found: Any
    if args.what == "check":
        found = check()
    elif args.what == "fleets":
        sizes = [int(size) for size in args.sizes.split(",")]
        scales = {n: args.scale or (1 if n <= 64 else 8) for n in sizes}
        found = [row(args.workload, n, args.load, router, scales[n]) for n in sizes for router in routers]
    else:
        loads = LOADS[args.workload]
        found = [
            row(args.workload, args.replicas, load, router, args.scale or 1) for load in loads for router in routers
        ]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
