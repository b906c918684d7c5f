"""Runs a command, and ends all of its process group when standard input ends, as it does however its holder ends.

python guard.py SECONDS COMMAND ...

It leads a process group, which the command joins. Tells on standard output, in a line, how the command ended: its exit
code, negative the signal. The group is told to end (SIGTERM), given so many seconds, and killed, this one with it. Run as
a file, by a Python without a site: it imports nothing but the standard library, and starts in 20 ms.
"""

import os
import signal
import subprocess
import sys
import threading


def main(seconds: float, command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(
            number, lambda *_: None
        )  # the command's own affair: a handler isn't inherited, as ignoring would be
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except OSError as cause:
        print(f"{command[0]} can't be run: {cause.strerror}", file=sys.stderr, flush=True)
        print(127, flush=True)
        return
    ended = threading.Event()

    def tell() -> None:
        code = child.wait()
        ended.set()  # first: where the holder is gone, nobody can be told
        print(code, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    try:
        sys.stdin.buffer.read()
        os.killpg(0, signal.SIGTERM)
        ended.wait(seconds)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
