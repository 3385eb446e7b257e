"""What an engine's process writes, as entries of this process's log: of one form with it, and under its level."""

import logging
import re
import sys

# As `backends.engine.process` configures it: level, logger, message.
ENTRY = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ([\w.]+): (.*)", re.DOTALL)
TRACE = "Traceback (most recent call last):"


class EngineLog:
    """Lines that are no entries are warnings, as those of libraries, or go on with an error and its traceback."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._level = logging.WARNING  # of a line that is no entry

    def add(self, line: str) -> None:
        """Where nobody has configured a log, as in a command of one's own, it comes out on stderr as it is."""
        if not logging.getLogger().hasHandlers():
            print(f"[{self._engine}] {line}", file=sys.stderr, flush=True)
            return
        entry = ENTRY.fullmatch(line)
        if entry is None:
            self._level = logging.ERROR if line.startswith(TRACE) else self._level
            self._log("backends.engine", self._level, line)
            return
        level = logging.getLevelNamesMapping()[entry[1]]
        self._level = max(logging.WARNING, level)
        self._log(entry[2], level, entry[3])

    def _log(self, logger: str, level: int, text: str) -> None:
        if text.strip():
            logging.getLogger(logger).log(level, "[%s] %s", self._engine, text)
