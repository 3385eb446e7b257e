"""`headrace serve`, looked at many times in each second of its CPU time: `python -m benchmarks.sampled serve …`.

SIGUSR1 begins it. At the end, what was seen is written to the file that BENCHMARK_SAMPLES names: each stack, the
innermost call first, with how often it was seen.
"""

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

FILE = "BENCHMARK_SAMPLES"  # variable
EVERY = 0.001  # seconds of CPU time; the kernel may look less often
DEEPEST = 80  # calls

Stack = tuple[str, ...]  # of "gateway/dispatch.py:run"


class Samples:
    """What the main thread was doing when the process had used its CPU for a little longer."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._names: dict[int, str] = {}  # by the id of the code, which lives as long as its module

    def begin(self) -> None:
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)

    def end(self) -> dict[str, int]:
        """Counts by stack, its calls joined by blanks."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {" ".join(self._names[call] for call in stack): seen for stack, seen in self._seen.items()}

    def _look(self, _: int, frame: FrameType | None) -> None:
        calls: list[int] = []
        while frame is not None and len(calls) < DEEPEST:
            code = frame.f_code
            if id(code) not in self._names:
                self._names[id(code)] = f"{_short(code.co_filename)}:{code.co_name}"
            calls.append(id(code))
            frame = frame.f_back
        self._seen[tuple(calls)] += 1


def _short(file: str) -> str:
    """The path from its package on."""
    path = file.rpartition("/site-packages/")[2]
    root = f"{Path(__file__).parent.parent}/"
    return path.removeprefix(root).replace(" ", "_")


def main() -> int:
    from gateway import cli

    samples = Samples()
    signal.signal(signal.SIGUSR1, lambda *_: samples.begin())
    try:
        return cli.main(sys.argv[1:])
    finally:
        Path(os.environ[FILE]).write_bytes(msgspec.json.encode(samples.end()))


if __name__ == "__main__":
    sys.exit(main())
