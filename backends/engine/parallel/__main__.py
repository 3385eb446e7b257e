"""`python -m backends.engine.parallel RANK RANKS PARENT STORE`: one rank of the engine whose process is PARENT."""

import argparse
import logging
import signal
from pathlib import Path

from backends.layers.shard import Shard
from backends.parentage import die_with


def main() -> None:
    """Ends with its parent, however that ends."""
    parser = argparse.ArgumentParser(
        description="Run one rank of an engine, as the first rank says on stdin."
    )
    for name in ("rank", "ranks", "parent"):
        parser.add_argument(name, type=int)
    parser.add_argument("store", type=Path)
    options = parser.parse_args()
    die_with(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # instead of a KeyboardInterrupt
    logging.basicConfig(
        level=logging.INFO, format=f"rank {options.rank}: %(levelname)s %(name)s: %(message)s"
    )
    from backends.engine.parallel.worker import follow  # now that nothing can leave it behind

    follow(Shard(options.rank, options.ranks), options.store)


if __name__ == "__main__":
    main()
