"""`python -m gateway.workers --channel DESCRIPTOR --parent PID`: a gateway worker, started by its parent alone."""

import argparse
import socket
import sys

from backends.parentage import die_with


def run() -> int:
    parser = argparse.ArgumentParser(
        description="Serve a gateway's requests beside others, as its parent says."
    )
    parser.add_argument(
        "--channel", type=int, required=True, help="a socket to the parent, by its descriptor"
    )
    parser.add_argument("--parent", type=int, required=True, help="the process to die with (Linux)")
    options = parser.parse_args()
    die_with(options.parent)
    from gateway.server import run
    from gateway.workers.worker import main

    return run(main(socket.socket(fileno=options.channel)))


if __name__ == "__main__":
    sys.exit(run())
