"""A measured engine's side: it loads a model, then answers lines on its standard input. Only the standard library.

`{"batch": 8, "prompt": 128, "answer": 128}` asks for so many greedy answers of just that length to prompts of random
ids, all at once; the reply tells seconds and the peak memory of the process.
"""

import argparse
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

MOST, LENGTH = 32, 576  # sequences at a time, tokens of each
KV_TOKENS = MOST * LENGTH  # room that every engine is given


@dataclass(frozen=True, slots=True)
class Task:
    model: str  # a folder or a file, as the engine wants it
    format: str
    threads: int
    vocabulary: int


class Subject(Protocol):
    def generate(self, prompts: list[list[int]], answer: int) -> int:
        """The number of tokens generated."""
        ...


def serve(load: Callable[[Task], Subject]) -> None:
    """Load what the command line names and answer until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    parser = argparse.ArgumentParser()
    for name in ("model", "format"):
        parser.add_argument(name)
    for name in ("threads", "vocabulary"):
        parser.add_argument(name, type=int)
    task = Task(**vars(parser.parse_args()))
    subject, draw = load(task), random.Random(0)
    _reply(out, ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [
            [draw.randrange(1000, task.vocabulary) for _ in range(asked["prompt"])]
            for _ in range(asked["batch"])
        ]
        began = time.perf_counter()
        count = subject.generate(prompts, asked["answer"])
        seconds = time.perf_counter() - began
        if count != asked["batch"] * asked["answer"]:
            raise RuntimeError(f"{count} tokens instead of {asked['batch']} times {asked['answer']}")
        _reply(out, seconds=seconds, megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _reply(out: TextIO, **fields: float) -> None:
    print(json.dumps(fields), file=out, flush=True)
