"""A model server of several tempers: `python talking_server.py PORT`, at /v1, speaks OpenAI's dialect.

The model's name says how it is: `DELAY-PAUSE-TOKENS`, the times in milliseconds before the first token and between two.
`broken` breaks off in mid-answer.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WORDS = "Water leaves the river, runs along the headrace and turns the wheel before it joins the stream again. ".split()


def chunk(**choice: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, **choice}]}).encode()


async def said(model: str, prompt: int) -> AsyncIterator[bytes]:
    if model == "broken":
        yield chunk(delta={"content": "Wat"})
        return
    delay, pause, tokens = (int(part) for part in model.split("-"))
    await asyncio.sleep(delay / 1000)
    for number in range(tokens):
        yield chunk(delta={"content": WORDS[number % len(WORDS)] + " "})
        await asyncio.sleep(pause / 1000)
    yield chunk(delta={}, finish_reason="stop")
    cached = {"prompt_tokens_details": {"cached_tokens": prompt // 2}}
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens, **cached}
    yield b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode()


async def chat(request: Request) -> Response:
    body = await request.json()
    words = sum(len(message["content"].split()) for message in body["messages"])
    return StreamingResponse(said(body["model"], 10 + words), media_type="text/event-stream")


async def models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": []})


app = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/health", models),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
