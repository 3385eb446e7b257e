"""An OpenAI-compatible server that thinks for a fixed time and then says a fixed text: `python -m benchmarks.stub`.

It does as little as a server can, so that what is measured in front of it is the gateway. What it does is asked for
with each request: `max_tokens` chunks, in a manner that the seed holds (see `seed_for`), which gateways pass on.
"""

import argparse
import asyncio
import gc
from functools import cache

import msgspec
import uvloop

WORDS = "the quick brown fox jumps over the lazy dog and runs away".split()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
MODELS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Asked(msgspec.Struct):
    """What the stub reads of a request's body."""

    max_tokens: int = 16
    seed: int = 0


def seed_for(delay: float, pace: float = 0.0) -> int:
    """The seed that asks for `delay` seconds before the first chunk, and `pace` seconds before each other one."""
    return round(delay * 1000) * 100_000 + round(pace * 1000)


def manner(seed: int) -> tuple[float, float]:
    """`delay` and `pace` in seconds, see `seed_for`."""
    delay, pace = divmod(seed, 100_000)
    return delay / 1000, pace / 1000


@cache
def frames(chunks: int) -> tuple[bytes, ...]:
    """The chunks of one answer of `chunks` words; the last one has usage and [DONE] in it."""

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
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    words = [
        frame([{"index": 0, "delta": {"content": WORDS[n % len(WORDS)] + " "}, "finish_reason": None}])
        for n in range(chunks)
    ]
    end = frame([{"index": 0, "delta": {}, "finish_reason": "stop"}])
    usage = frame([], {"prompt_tokens": 10, "completion_tokens": chunks, "total_tokens": 10 + chunks})
    pieces = [*words[:-1], words[-1] + end + usage + b"data: [DONE]\n\n"]
    return tuple(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
    delay, pace = manner(asked.seed)
    chunks = frames(asked.max_tokens)
    await asyncio.sleep(delay)
    if not pace:
        return writer.write(HEAD + b"".join(chunks) + END)
    writer.write(HEAD)
    for chunk in chunks:
        writer.write(chunk)
        await asyncio.sleep(pace)
    writer.write(END)


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            if head.startswith(b"post "):
                await answer(msgspec.json.decode(body, type=Asked), writer)
            else:
                writer.write(MODELS)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the client has gone, which is how every connection ends
    finally:
        writer.close()


async def serve(port: int) -> None:
    gc.freeze()  # going through what was imported would be taken for the gateway's doing
    server = await asyncio.start_server(handle, "127.0.0.1", port, backlog=8192)
    print(f"stub ready on {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(serve(parser.parse_args().port))
