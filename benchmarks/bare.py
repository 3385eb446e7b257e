"""The least that a gateway of Starlette and httpx can be: it passes bodies on, and answers back as they come."""

import os
from collections.abc import AsyncIterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

UPSTREAM = os.environ.get("BENCHMARK_UPSTREAM", "")
client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


async def chat(request: Request) -> StreamingResponse:
    sent = client.build_request("POST", f"{UPSTREAM}/chat/completions", content=await request.body())
    answer = await client.send(sent, stream=True)

    async def body() -> AsyncIterator[bytes]:
        async for piece in answer.aiter_raw():
            yield piece
        await answer.aclose()

    return StreamingResponse(body(), media_type="text/event-stream")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    uvicorn.run(app, port=0, access_log=False)
