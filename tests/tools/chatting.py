"""What the tests of the chat client ask."""

from __future__ import annotations

import asyncio

from verl_ext.tools.chat import ChatEndpoint

GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "max_tokens": 9, "seed": 2**62 + 5}
SAMPLED = {**GREEDY, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
CHAT = [{"role": "user", "content": "Where is the Louvre?"}]


def ask(server, sampling=GREEDY, times=1, **options):
    """The client, and the answers to `times` calls at once; exceptions in their places."""

    async def scenario():
        llm = ChatEndpoint(server.url, **{"retries": 3, "timeout": 5.0, **options})
        try:
            await llm.find_model()
            return llm, await asyncio.gather(
                *[llm.complete(CHAT, sampling) for _ in range(times)], return_exceptions=True
            )
        finally:
            await llm.close()

    return asyncio.run(scenario())
