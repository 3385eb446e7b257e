"""Grammars are tried out in a process that may die of them, before an engine compiles them for itself.

The limits of llguidance do not bound everything: a chain of some thousand rules overflows its stack, and a regular
expression of 60,000 characters takes gigabytes. So a process of few rights goes first: it compiles the grammar and
follows it for some tokens, with little memory, a second or two of processor time and a small stack. What it survives,
the engine does too. It starts with the first grammar, and again after each one that it died of. What it survived lately
is not tried again: a service asks for the same few grammars with every request.
"""

import math
import os
import random
import resource
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from hashlib import sha256
from typing import IO

import msgspec
import numpy as np

from backends.engine.grammar import TOO_SLOW, Constraint, GrammarCompiler, GrammarError
from backends.wire import Grammar, Vocabulary

MEMORY = 128 * 2**20  # bytes that a trial may take
CPU = 1  # seconds, rounded up
PATIENCE = 120.0  # seconds for a trial, its process's start included, of one that neither works nor ends
STACK = 2**22  # bytes; half of what threads of the engine have
REMEMBERED = 4096  # grammars that need no trial any more
STEPS = 32  # tokens of a sentence that are tried
TRIALS = 3
SLOW = 0.1  # seconds of processor time that no step may take


class Setup(msgspec.Struct, frozen=True):
    """What `GrammarCompiler` is made of."""

    vocabulary: Vocabulary
    eos: frozenset[int]
    vocab_size: int


class TriedCompiler:
    """A `GrammarCompiler` whose grammars have been tried. One thread at a time."""

    def __init__(self, vocabulary: Vocabulary, eos: frozenset[int], vocab_size: int) -> None:
        """As `GrammarCompiler`."""
        self._setup = msgspec.msgpack.encode(Setup(vocabulary, eos, vocab_size))
        self._compiler = GrammarCompiler(vocabulary, eos, vocab_size)
        self._process: subprocess.Popen[bytes] | None = None
        self._survived: OrderedDict[bytes, None] = OrderedDict()  # digests, the latest last

    def compile(self, grammar: Grammar) -> Constraint:
        """Raises GrammarError, also for what the trial died of."""
        order = msgspec.msgpack.encode(grammar)
        digest = sha256(order).digest()
        if digest not in self._survived:
            fault = self._try(order)
            if fault:
                raise GrammarError(fault)
        self._remember(digest)
        return self._compiler.compile(grammar)

    def close(self) -> None:
        """Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _remember(self, digest: bytes) -> None:
        self._survived[digest] = None
        self._survived.move_to_end(digest)
        while len(self._survived) > REMEMBERED:
            self._survived.popitem(last=False)

    def _try(self, order: bytes) -> str:
        """What is wrong with an encoded grammar; empty for nothing."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it has died of something else
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            _write(process.stdin, order)
            fault = _read(process.stdout) if _answers(process.stdout) else None
        except BrokenPipeError:
            fault = None
        if fault is None:
            self.close()
            return "it takes too much time or memory to compile"
        return fault.decode()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "backends.engine.trial"]
        # glibc reserves more address space for the heap of a second thread than a trial may have, and without it maps
        # each piece of memory alone: fifteen times slower.
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert process.stdin is not None
        _write(process.stdin, self._setup)
        return process


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """The other process: a `Setup`, then a `Grammar` at a time, each answered by what is wrong with it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    setup = msgspec.msgpack.decode(_read(orders) or b"", type=Setup)
    compiler = GrammarCompiler(setup.vocabulary, setup.eos, setup.vocab_size)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
    threading.stack_size(STACK)
    while (order := _read(orders)) is not None:
        resource.setrlimit(
            resource.RLIMIT_CPU, (math.ceil(time.process_time()) + CPU, resource.RLIM_INFINITY)
        )
        grammar = msgspec.msgpack.decode(order, type=Grammar)
        faults: list[str] = []
        thread = threading.Thread(
            target=lambda grammar=grammar, faults=faults: faults.append(fault(compiler, grammar))
        )
        thread.start()
        thread.join()
        _write(answers, faults[0].encode())


def fault(compiler: GrammarCompiler, grammar: Grammar) -> str:
    """What is wrong with a grammar, in itself or after some tokens of a sentence; empty for nothing.

    A slow step counts when every trial has one: on a busy machine a harmless one is slow once in a while.
    """
    for _ in range(TRIALS):
        found = _fault(compiler, grammar)
        if found != TOO_SLOW:
            return found
    return TOO_SLOW


def _fault(compiler: GrammarCompiler, grammar: Grammar) -> str:
    chance = random.Random(0)
    try:
        constraint = compiler.compile(grammar)
        for _ in range(STEPS):
            if constraint.complete:
                break
            before = time.thread_time()
            constraint.accept(_any_token(constraint, chance))
            if time.thread_time() - before > SLOW:
                return TOO_SLOW
    except GrammarError as error:
        return str(error)
    return ""


def _any_token(constraint: Constraint, chance: random.Random) -> int:
    words = constraint.allowed(frozenset(), ending=False)
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    return int(ids[chance.randrange(len(ids))])


def _answers(stream: IO[bytes]) -> bool:
    """Whether there is something to read, or its end, within PATIENCE."""
    poll = select.poll()  # unlike `select`, for files of any number
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(PATIENCE * 1000))


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(4) + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream."""
    size = stream.read(4)
    return stream.read(int.from_bytes(size)) if len(size) == 4 else None


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
