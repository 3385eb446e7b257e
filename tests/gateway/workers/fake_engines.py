"""`headrace` with engines that have no model: `python fake_engines.py serve --config FILE`."""

import sys
from pathlib import Path

from backends.supervisor import Supervisor
from gateway.cli import main

FAKE = Path(__file__).parents[2] / "backends" / "fake_engine.py"

if __name__ == "__main__":
    defaults = Supervisor.__init__.__kwdefaults__
    assert defaults is not None
    defaults["command"] = (sys.executable, str(FAKE))
    sys.exit(main())
