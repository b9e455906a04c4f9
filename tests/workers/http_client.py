"""One raw HTTP request, and all that comes back."""

import asyncio


async def ask(port: int, head: str | bytes) -> str:
    """`head`: its lines without the empty one at the end, or raw bytes to be sent as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head if isinstance(head, bytes) else f"{head}\r\nHost: x\r\n\r\n".encode())
        writer.write_eof()
        return (await reader.read()).decode()
    finally:
        writer.close()
        await writer.wait_closed()
