"""A program that serves a small application as `headrace serve` does: `python served_app.py PORT DRAIN_TIMEOUT`.

It prints what happens to it. `/work?SECONDS` is a request that takes that long. With SLOW_START in the environment its
lifespan takes that many seconds to begin; with FAILING_START it fails.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.drain import Drain
from gateway.errors import ApiError
from gateway.server import Door, bind, run, serve
from gateway.watching import watched

drain = Drain()


def say(text: str) -> None:
    print(text, flush=True)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    say("starting")
    try:
        await asyncio.sleep(float(os.environ.get("SLOW_START", "0")))
        if "FAILING_START" in os.environ:
            raise RuntimeError("the engine does not start")
        yield
    finally:
        say("stopped")


async def work(request: Request) -> PlainTextResponse:
    try:
        with drain.taken():
            say("working")
            await watched(asyncio.sleep(float(request.url.query)), drain.cut)
    except ApiError as error:
        return PlainTextResponse(error.code or "", error.status)
    return PlainTextResponse("worked")


async def main(port: int, drain_timeout: float) -> None:
    app = Starlette(routes=[Route("/work", work)], lifespan=lifespan)
    with bind("127.0.0.1", port) as listener:
        opened = f"open {listener.getsockname()[1]}"
        await serve([Door(app, listener)], drain, drain_timeout, lambda: say(opened), lambda: say("hung up"))


if __name__ == "__main__":
    run(main(int(sys.argv[1]), float(sys.argv[2])))
