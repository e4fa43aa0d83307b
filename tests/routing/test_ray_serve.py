"""Ray Serve for real: two replicas of the package's model behind the prefix router.  Needs ``pip install ray[serve]``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
PORT = 8765
URL = f"http://127.0.0.1:{PORT}"
OPTIONS = "--threads 1 -c 2048 --no-access-log"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S="60",  # machines that do other things, too
        RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S="60",
    )
    from ray import serve

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    try:
        serve.start(http_options={"port": PORT})
        deploy()
        with httpx.Client(base_url=URL, timeout=60, trust_env=False) as made:
            yield made
    finally:
        serve.shutdown()
        ray.shutdown()


def deploy(options: str = OPTIONS) -> None:
    from quire.ray import app
    from ray import serve

    serve.run(app({"replicas": 2, "num_cpus": 0.5, "options": options, "multiplexed": 1}), route_prefix="/")


def chat(client: httpx.Client, text: str, **more: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0, **more}
    return client.post("/v1/chat/completions", json=body)


def replica_pids() -> list[int]:
    from ray._private import state

    found = [each for each in state.actors().values() if each["ActorClassName"] == "ServeReplica:default:Server"]
    return [each["Pid"] for each in found if each["State"] == "ALIVE"]


def test_later_turns_go_to_the_replica_that_knows_the_earlier_ones(client: httpx.Client) -> None:
    shares = []
    for talk in range(6):
        text = f"Talk {talk}: tell me a story about a fox and a river. " * 12
        for turn in range(3):
            usage = chat(client, text + f" Turn {turn}.").json()["usage"]
            shares.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
    assert all(share > 0.6 for i, share in enumerate(shares) if i % 3)


def test_routes_dialects_and_errors_are_those_of_the_server(client: httpx.Client) -> None:
    assert client.get("/v1/models").json()["data"][0]["id"] == "tiny-chat"
    message = {"model": "tiny-chat", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/messages", json=message).json()["type"] == "message"
    refused = client.post("/v1/chat/completions", content=b"{")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")
    lines = [line for line in chat(client, "hi", stream=True).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"


def test_a_lost_replica_breaks_only_answers_that_had_begun(client: httpx.Client) -> None:
    stop, outcomes = threading.Event(), []

    def ask(n: int) -> None:
        with httpx.Client(base_url=URL, timeout=60, trust_env=False) as own:
            while not stop.is_set():
                began_s = time.monotonic()
                answer = chat(own, f"Story {n}", stream=True, max_tokens=60)
                is_whole = answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]")
                is_broken = answer.status_code in (200, 502) and "replica_lost" in answer.text
                outcomes.append((is_whole, is_broken, time.monotonic() - began_s))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, n) for n in range(4)]
        time.sleep(2)
        os.kill(replica_pids()[0], signal.SIGKILL)
        time.sleep(8)
        stop.set()
        for each in asking:
            each.result()
    assert all(is_whole or is_broken for is_whole, is_broken, _ in outcomes)
    assert sum(is_broken for _, is_broken, _ in outcomes) <= 4
    assert max(seconds for *_, seconds in outcomes) < 30
    assert chat(client, "hi").status_code == 200


def test_an_update_fails_no_request(client: httpx.Client) -> None:
    statuses, updated = [], threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=URL, timeout=120, trust_env=False) as own:
            while not updated.is_set():
                statuses.append(chat(own, "hi", max_tokens=4).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        deploy(OPTIONS + " --alias newer")
    finally:
        updated.set()
        asking.join()
    assert set(statuses) == {200}
    assert "newer" in client.get("/v1/models").text


def test_a_request_goes_to_a_replica_that_has_used_its_model() -> None:
    from quire.ray.router import PrefixRouter

    router = PrefixRouter.__new__(PrefixRouter)
    router.initialize_state()
    replicas = [SimpleNamespace(replica_id=i, multiplexed_model_ids={"a"} if i == 2 else set()) for i in range(4)]

    def best(model: str, n: int) -> int:
        metadata = SimpleNamespace(multiplexed_model_id=model, internal_request_id=f"{model}{n}")
        pending = SimpleNamespace(metadata=metadata, kwargs={"hashes": []})
        ranks: Any = asyncio.run(router.choose_replicas(replicas, pending))
        assert sorted(each.replica_id for rank in ranks for each in rank) == [0, 1, 2, 3]
        router.on_request_routed(pending, ranks[0][0].replica_id, None)
        return int(ranks[0][0].replica_id)

    assert [best("a", n) for n in range(9)] == [2] * 9
    assert best("a", 9) != 2  # it has enough to do
    assert best("b", 0) != 2


@pytest.mark.parametrize(
    ("n", "queued", "held", "expected"),
    [
        (2, {}, {}, 1), (2, {"a": 0.5, "b": 0.5}, {"a": 0.5, "b": 0.5}, 2), (2, {"a": 3.0, "b": 0.0}, {}, 3),
        (2, {"a": 9.0, "b": 9.0}, {}, 4), (8, {"a": 100.0}, {}, 8), (2, {"a": 0.0}, {"a": 0.95, "b": 0.95}, 3),
        (2, {"a": 0.0}, {"a": 0.4, "b": 0.4}, 2), (1, {"a": 0.0}, {"a": 0.0}, 1),
    ],
)  # fmt: skip
def test_replicas_follow_the_queue_and_the_caches(
    n: int, queued: dict[str, float], held: dict[str, float], expected: int
) -> None:
    from quire.ray.application import autoscale

    context = SimpleNamespace(
        current_num_replicas=n, aggregated_metrics={"queued": queued, "cache_held": held},
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=8,
    )  # fmt: skip
    assert autoscale(context)[0] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [{"replicas": "0"}, {"num_cpus": "nan"}, {"num_gpus": "1e999"}, {"max_replicas": "1", "replicas": "2"},
     {"max_ongoing_requests": "-1"}, {"ingresses": "1.5"}, {"queued_tokens": "0"}],
)  # fmt: skip
def test_numbers_out_of_range_are_refused_before_a_cluster_starts(wrong: dict[str, str]) -> None:
    from quire.errors import RequestError
    from quire.ray.cluster import run

    with pytest.raises(RequestError, match=next(iter(wrong))):
        run("no-such-host:1", wrong, (), host="127.0.0.1", port=0, check=print, say=print)


def test_serve_deploys_on_a_cluster_until_it_is_interrupted(client: httpx.Client) -> None:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "quire", "serve", "--ray", address, "--ray-arg", "num_cpus=0.5", *OPTIONS.split()]
    with subprocess.Popen([*command, "--alias", "by-command"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if re.search(r"quire: serving on http://", line):
                break
        assert said[-1:] == [f"quire: serving on {URL} (Ctrl-C stops the replicas)\n"], said
        assert "by-command" in client.get("/v1/models").text
        assert chat(client, "hi", max_tokens=4).status_code == 200
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    assert process.returncode == 0
    assert client.get("/v1/models").status_code == 404  # the application is gone; Ray Serve, started before, is not
