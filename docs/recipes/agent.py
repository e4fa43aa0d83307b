"""An agent that calls tools, on LangGraph, and whose state survives a restart.

Needs ``langgraph`` and ``langgraph-checkpoint-sqlite``.  The first run stops when the model wants a tool called, as one
would to ask a person first; everything is closed then.  The second begins with nothing but the file, calls the tool and
lets the model answer.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from quire import LLM
from quire.integrations.langchain import ChatQuire

THREAD: Any = {"configurable": {"thread_id": "weather"}}


def get_weather(city: str) -> str:
    """Get the weather for a city."""
    return json.dumps({"city": city, "temp_c": 21, "sky": "sunny"})


TOOLS = [tool(get_weather)]


def agent(llm: LLM, saver: SqliteSaver) -> Any:
    """A graph: the model, and the tools while it calls any."""
    model = ChatQuire(llm, temperature=0.0, max_tokens=64).bind_tools(TOOLS)

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    def after(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver, interrupt_before=["tools"])


def run(path: Path, model: str | None, question: str | None) -> list[Any]:
    """The conversation so far: begun with a question, or gone on with from the file."""
    with LLM(model) as llm, SqliteSaver.from_conn_string(str(path)) as saver:
        begin = None if question is None else {"messages": [HumanMessage(question)]}
        messages: list[Any] = agent(llm, saver).invoke(begin, THREAD)["messages"]
        return messages


def main(models: list[str]) -> None:
    model = models[0] if models else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "agent.sqlite")
        *_, asked = run(path, model, "What is the weather in Paris?")
        print("wants:", [(call["name"], call["args"]) for call in asked.tool_calls])
        messages = run(path, model, None)
    for message in messages:
        print(f"{message.type}: {message.content or message.tool_calls}")
    if not models and "21" not in messages[-1].content:
        raise SystemExit("the answer must be of the tool's result")


if __name__ == "__main__":
    main(sys.argv[1:])
