"""Ask a question with Headrace's own client: python examples/python_client.py HOST:PORT "Why is the sky blue?" [PREFIX]

It reads finals with `read_committed` and streams without, puts both together, and reads no other client's answers.
"""

import asyncio
import sys

from topics.client import HeadraceClient


async def main(brokers: str, question: str, prefix: str = "inference") -> None:
    async with HeadraceClient(brokers, topic_prefix=prefix, own_partition=True) as client:
        stream = await client.stream(question, priority="p1", tenant="examples", max_tokens=64)
        async for delta in stream:
            print(delta.text, end="", flush=True)
        print()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
