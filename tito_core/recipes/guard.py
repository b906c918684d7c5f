"""Runs a command, and ends all of its process group when standard input ends, as it does however its holder ends.

python guard.py SECONDS COMMAND ...

It leads a process group, which the command joins. Tells on standard output, in a line, how the command ended: its exit
code, negative the signal. The command is told to end (SIGTERM), and given so many seconds to end what it started; then the
group is killed, this one with it. Run as a file, by a Python without a site: it imports nothing but the standard library.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main(seconds: float, command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command's own affair; it inherits no handler, as it would SIG_IGN
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except OSError as cause:
        print(f"{command[0]} can't be run: {cause.strerror}", file=sys.stderr, flush=True)
        print(127, flush=True)
        return
    ended = threading.Event()

    def tell() -> None:
        code = child.wait()
        with contextlib.suppress(OSError):  # where the holder is gone, nobody can be told
            print(code, flush=True)
        ended.set()

    threading.Thread(target=tell, daemon=True).start()
    try:
        sys.stdin.buffer.read()
        child.terminate()
        ended.wait(seconds)
    finally:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
