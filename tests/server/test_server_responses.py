"""Reasoning in ``/v1/responses``: its item, its events, its tokens.

Oracle: a script of deltas, and the order of events that OpenAI documents.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from one_call import post
from quire.server.worker.engine_client import Stream
from quire.server.worker.protocol import CallDelta, Delta, Finished, Started, Work

CALL = CallDelta(0, "c1", "f", '{"a": 1}')


class ScriptedEngine(FakeEngine):
    """An engine that answers with these deltas, of two tokens each."""

    def __init__(self, *deltas: tuple[str, str, list[CallDelta]]) -> None:
        super().__init__()
        self.deltas = deltas

    def submit(self, work: Work) -> Stream:
        made, stream = self.open(work)
        self.asked.append(made)
        deltas = [Delta(made.id, 0, content, [1, 2], thought, calls) for content, thought, calls in self.deltas]
        end = Finished(made.id, 0, "stop", None, 3, 0, 2 * len(deltas), 0.0, 0.001, 0.002)
        self.dispatch([Started(made.id, 3), *deltas, end])
        return stream


THINKS = (("", "", []), ("", "One", []), ("", " two", []), ("Three", "", []), (" four", "", []))
CALLS = (("", "Look", []), ("", "", [CALL]))


@pytest.mark.parametrize(
    ("deltas", "kinds", "n_reasoning"),
    [
        (THINKS, ["reasoning", "message"], 6),
        (CALLS, ["reasoning", "function_call"], 2),
        (THINKS[3:], ["message"], 0),
        (THINKS[1:2], ["reasoning", "message"], 2),
    ],
)
def test_reasoning_is_an_item_of_its_own(deltas: Any, kinds: list[str], n_reasoning: int) -> None:
    body = {"input": "x", "store": False}
    whole = post("/v1/responses", body, engine=ScriptedEngine(*deltas)).json()
    assert [item["type"] for item in whole["output"]] == kinds
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": n_reasoning}
    response = post("/v1/responses", {**body, "stream": True}, engine=ScriptedEngine(*deltas))
    events = [json.loads(part.partition("\ndata: ")[2]) for part in response.text.strip().split("\n\n")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    streamed = events[-1]["response"]
    assert streamed["usage"] == whole["usage"]
    assert [without_ids(item) for item in streamed["output"]] == [without_ids(item) for item in whole["output"]]
    # Each item starts, grows and ends before the next one starts.
    at = [event["output_index"] for event in events if "output_index" in event]
    assert at == sorted(at)
    for i, item in enumerate(streamed["output"]):
        mine = [event for event in events if event.get("output_index") == i]
        assert mine[0]["type"] == "response.output_item.added"
        assert mine[-1]["type"] == "response.output_item.done"
        assert mine[-1]["item"] == item
        assert {event["item_id"] for event in mine if "item_id" in event} == {item["id"]}
    thoughts = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "".join(thought for _, thought, _ in deltas)


def test_responses_have_timings_like_llama_cpp() -> None:
    """With every delta if requested, and always with the last event."""
    for asked in (False, True):
        body = {"input": "x", "stream": True, "timings_per_token": asked}
        response = post("/v1/responses", body, engine=ScriptedEngine(*THINKS))
        events = [json.loads(part.partition("\ndata: ")[2]) for part in response.text.strip().split("\n\n")]
        deltas = [event for event in events if event["type"].endswith(".delta")]
        assert [("timings" in event) for event in deltas] == [asked] * 4
        assert (events[-1]["type"], events[-1]["timings"]["predicted_n"]) == ("response.completed", 10)
        if asked:
            assert [event["timings"]["predicted_n"] for event in deltas] == [4, 6, 8, 10]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}
