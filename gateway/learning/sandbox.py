"""Does this program run to its end? Asked of code that a model has written, so in a process with little to break.

Limits of time, memory and files, an empty folder, an empty environment, no network where the kernel allows that. What
the user may read the program may read too: whoever tests answers of strangers' prompts does so in a container.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from pathlib import Path

CONFINED = Path(__file__).with_name("confined.py")
TIMEOUT = 120.0  # seconds on the clock, against what sleeps; what works is ended by its processor time


async def runs_through(program: str, timeout: float = TIMEOUT) -> bool:
    """Whether it comes to its last line in time: a word that only that line knows is the last that it prints."""
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="headrace-check-") as folder:
        file, printed = Path(folder) / "program.py", Path(folder) / "printed"
        file.write_text(f"{program}\nprint('\\n{word}', flush=True)\n", encoding="utf-8", errors="replace")
        with printed.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(CONFINED), str(file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=folder,
                env={},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(timeout):
                return await process.wait() == 0 and printed.read_bytes().rstrip().endswith(word.encode())
        except TimeoutError:
            return False
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """It and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
