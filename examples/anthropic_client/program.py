"""A solver and a verifier on the `anthropic` package: it knows a server and a key, and nothing of verl_ext."""

from __future__ import annotations

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

# Runs share their connections, but not their keys: to make a client takes longer than a tiny model's answer.
HTTP = DefaultAsyncHttpxClient()


async def solve(problem: str, base_url: str, api_key: str) -> str:
    """The totals of a sum, after a solution, a check, and up to two more tries."""
    # Its default is to give up connecting after 5 s, which a machine at its limit may need.
    client = AsyncAnthropic(base_url=base_url, api_key=api_key, http_client=HTTP, max_retries=0, timeout=600)

    async def ask(model: str, content: str, max_tokens: int) -> str:
        asked = {"role": "user", "content": content}
        message = await client.messages.create(model=model, max_tokens=max_tokens, messages=[asked])
        return "".join(block.text for block in message.content if block.type == "text").strip()

    solution = await ask("solver", f"solve: {problem}", 24)
    for _ in range(2):
        verdict = await ask("verifier", f"check: {problem} : {solution}", 8)
        if not verdict.startswith("wrong"):
            break
        solution = await ask("solver", f"solve: {problem} : {solution} : {verdict}", 24)
    return solution
