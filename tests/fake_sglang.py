"""A server that speaks SGLang's HTTP, and does what a test tells it: for the faults that the real one shows too seldom."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from tito_core import Codec
from tito_core.engines.scripted import ScriptedEngine

Answer = dict[str, Any]


class Reset(Exception):
    """Break the connection off instead of answering."""


class Status(Exception):
    def __init__(self, code: int, body: Any) -> None:
        super().__init__(code)
        self.code, self.body = code, body


class Raw(Exception):
    """Answer these bytes, under this length."""

    def __init__(self, data: bytes, length: int | None = None) -> None:
        super().__init__()
        self.data, self.length = data, len(data) if length is None else length


class Fake:
    """`acts` are done first, one a request, and then `usual`: each makes an answer of path and body, or raises."""

    def __init__(self, usual: Callable[[str, Answer], Answer]) -> None:
        self.usual = usual
        self.acts: deque[Callable[[str, Answer], Answer]] = deque()
        self.seen: list[tuple[str, Answer]] = []
        self.headers: list[dict[str, str]] = []
        self.busy = self.busiest = 0
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.url = ""
        self.info: Callable[[], Answer] | None = None
        """What it tells of itself; None: nothing."""

    def handle(self, path: str, body: Answer, headers: dict[str, str]) -> Answer:
        with self.lock:
            self.seen.append((path, body))
            self.headers.append(headers)
            self.busy += 1
            self.busiest = max(self.busy, self.busiest)
            act = self.acts.popleft() if self.acts else self.usual
        try:
            return act(path, body)
        finally:
            with self.lock:
                self.busy -= 1

    def hang(self, path: str, body: Answer) -> Answer:
        self.stopping.wait(10)
        raise Reset


@contextmanager
def serving(fake: Fake, port: int = 0) -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/health":
                self._send(200, b"")
            elif fake.info is None or self.path != "/server_info":
                self._send(404, b'{"detail":"Not Found"}')
            else:
                self._say(fake.info)

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["content-length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            self._say(lambda: fake.handle(self.path, json.loads(sent), headers))

        def _say(self, answer: Callable[[], Answer]) -> None:
            try:
                self._send(200, json.dumps(answer()).encode())
            except Status as status:
                self._send(
                    status.code, status.body if isinstance(status.body, bytes) else json.dumps(status.body).encode()
                )
            except Raw as raw:
                self._send(200, raw.data, raw.length)
            except Reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

        def _send(self, status: int, data: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(data) if length is None else length))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection = length is not None and length != len(data)

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        fake.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def chat(ids: list[int], prompt: list[int], **more: Any) -> Answer:
    """SGLang's answer on chat: `ids` sampled after `prompt`."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hello", "reasoning_content": None, "tool_calls": None},
        "finish_reason": "stop",
        "matched_stop": None,
        "prompt_token_ids": prompt,
        "response_token_ids": ids,
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "output_token_logprobs": [[-0.5, one, "x"] for one in ids],
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "default",
        },
    }
    return {"id": "0", "choices": [{**choice, **more}]}


def model(codec: Codec, **more: Any) -> Callable[[str, Answer], Answer]:
    """What a server does that renders as this codec does, and samples what the scripted engine says."""

    def answer(path: str, body: Answer) -> Answer:
        decision = codec.decide(chat_template_kwargs=body["chat_template_kwargs"])
        if "input_ids" not in body:
            text = codec.render(body["messages"], tools=body["tools"], decision=decision).text
            return chat([5], codec.encoder.tokenizer.encode(text, add_special_tokens=False).ids)
        prompt = body["input_ids"]
        names = [tool["function"]["name"] for tool in body["tools"] or ()]
        engine = ScriptedEngine(codec, hash(tuple(prompt)), canonical=True)
        message = engine.reply(names, decision)
        message["content"] = f"the file holds four lines {message['content']}".strip()
        said = engine.say(message, decision, max_tokens=body["max_tokens"])
        made = chat(np.asarray(said.ids).tolist(), prompt, message=message, finish_reason=said.finish_reason)
        made["choices"][0]["meta_info"].update({"cached_tokens": len(prompt) - 3, "finish_reason": None, **more})
        return made

    return answer
