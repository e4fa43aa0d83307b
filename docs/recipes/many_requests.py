"""Serve many callers of one event loop from one batch."""

import asyncio

from quire import AsyncLLM


async def ask(llm: AsyncLLM, city: str) -> str:
    result = await llm.chat([{"role": "user", "content": f"What is the weather in {city}?"}], max_tokens=24)
    return f"{city}: {result.message.content}"


async def work() -> None:
    llm = await asyncio.to_thread(AsyncLLM)  # opening a model blocks
    try:
        for answer in await asyncio.gather(*(ask(llm, city) for city in ("Paris", "Rome", "Oslo"))):
            print(answer)
    finally:
        await llm.close()


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
