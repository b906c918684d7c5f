"""An engine's stand-in that a test starts as a child: `python fake_child.py PORT WORD ...`, each word a thing that it does.

python fake_child.py held WORD ...     holds such a child until it is killed itself, telling its group's id
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: int, words: list[str]) -> None:
    for word in words:
        match word.split("=", 1):
            case ["die", code]:
                print("Traceback (most recent call last):\n  in a worker\nRuntimeError: no kernel image", flush=True)
                sys.exit(int(code))
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["ignore"]:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            case ["say", name]:
                print(os.environ[name], flush=True)
            case ["worker"]:
                worker = [sys.executable, __file__, "0", "ignore", "say=HOME", "sleep"]
                subprocess.Popen(worker, stdout=subprocess.PIPE).stdout.readline()
            case ["sleep"]:
                time.sleep(600)
            case ["print"]:
                for number in itertools.count():
                    print(number, "0123456789" * 100)
            case ["bar"]:
                print("loading 1%\rloading 2%", end="", flush=True)
            case ["unwell"]:
                Health.status = 503
    HTTPServer(("127.0.0.1", port), Health).serve_forever()


def hold(words: list[str]) -> None:
    from tito_core.recipes.child import Child, free_port

    port = free_port()
    with Child("fake", [sys.executable, __file__, str(port), *words], {}, grace=1) as child:
        child.ready(f"http://127.0.0.1:{port}", 60)
        print(child.pid, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    if sys.argv[1] == "held":
        hold(sys.argv[2:])
    else:
        serve(int(sys.argv[1]), sys.argv[2:])
