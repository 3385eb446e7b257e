"""An OpenAI-compatible server that thinks for a fixed time and then says a fixed text: `python -m benchmarks.stub`.

It does as little as a server can, so that what is measured in front of it is the gateway.
"""

import argparse
import asyncio
import json
from contextlib import suppress

WORDS = "the quick brown fox jumps over the lazy dog and runs away".split()


def frames(chunks: int) -> list[bytes]:
    """The SSE frames of one answer of `chunks` words, usage and [DONE] included."""

    def frame(choices: list[dict[str, object]], usage: dict[str, int] | None = None) -> bytes:
        body = {
            "id": "stub",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": "stub",
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    words = [
        frame([{"index": 0, "delta": {"content": WORDS[n % len(WORDS)] + " "}, "finish_reason": None}])
        for n in range(chunks)
    ]
    end = frame([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    usage = frame([], {"prompt_tokens": 10, "completion_tokens": chunks, "total_tokens": 10 + chunks})
    return [*words, end, usage, b"data: [DONE]\n\n"]


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(port: int, delay: float, chunks: int) -> None:
    """Answer every POST alike, `delay` seconds after its body has come."""
    answer = HEAD + b"".join(map(chunked, frames(chunks))) + b"0\r\n\r\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (
                        int(line[15:])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ),
                    0,
                )
                await reader.readexactly(length)
                await asyncio.sleep(delay)
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone, which is how every connection ends
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    print(f"stub ready on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds before the first byte")
    parser.add_argument("--chunks", type=int, default=20)
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(options.port, options.delay, options.chunks))
