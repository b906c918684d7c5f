"""What the engines over HTTP share: one connection pool, its limits and faults, and the proof of what came back."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

import numpy as np
import orjson

from tito_core.errors import CompletionError, EngineError
from tito_core.families.family import Parsers
from tito_core.prompts.messages import Tool
from tito_core.responses.completion import Completion
from tito_core.sessions.turn import Request
from tito_core.tokens.append import Ids
from tito_core.tokens.compare import shared_length

if TYPE_CHECKING:
    import httpx

__all__ = ["NOTHING", "HTTPEngine", "Kind", "choice_of", "conversation", "mapping", "offered"]

Kind = Literal["usage", "overload", "context", "fault", "unreached", "timeout", "cancelled", "answer"]
"""Of an EngineError: the request is wrong; too much at once; too long; the engine failed; it is not there; it is slow;
somebody cancelled; what it answered can't be trained on."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_TOO_LONG: Final = re.compile(
    r"context[ _]length|maximum context|longer than the|max_model_len|tokens is too large", re.I
)
_SAID: Final = 500


class HTTPEngine:
    """An engine behind a URL. Safe to share between threads; close it, or use it in a `with`.

    At most `concurrency` calls run at once, the others wait. Seconds: `connect` to reach it, `read` for the longest
    silence (an engine is silent while it samples), `total` for a call with its retries. Only a fault of the transport
    is tried again, `retries` times after waits that double from `backoff`; an answer never is, whatever it says.
    `max_bytes` bounds an answer. `sampling` are sampling parameters and `fields` other fields of every request.

    `cancel` ends the calls of one request or all of them, from any thread; the connection breaks, and the engine
    aborts what it was sampling.
    """

    kind: ClassVar[str]
    how: ClassVar[Mapping[str, str]]
    """What to switch on where an answer lacks `ids`, `logprobs`, `prompt` (ids) or the prompt ids of a `render`."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        connect: float = 10.0,
        read: float = 1200.0,
        total: float = 3600.0,
        retries: int = 3,
        backoff: float = 0.5,
        concurrency: int = 64,
        max_bytes: int = 64 << 20,
        sampling: Mapping[str, Any] = NOTHING,
        fields: Mapping[str, Any] = NOTHING,
    ) -> None:
        import httpx

        self.url = url.rstrip("/").removesuffix("/v1")
        try:
            address = httpx.URL(self.url)
            whole = address.scheme in ("http", "https") and address.host and 0 <= (address.port or 0) < 1 << 16
        except (httpx.InvalidURL, ValueError):
            whole = False
        if not whole:
            raise EngineError(f"the engine's URL is {url!r}; it looks like http://127.0.0.1:30000", kind="usage")
        if api_key and not re.fullmatch(r"[!-~]+", api_key):
            raise EngineError(
                "the API key holds a line's end, a blank or a character outside ASCII, which no header can carry; pass the "
                "key alone",
                kind="usage",
            )
        self._sampling, self._fields = dict(sampling), dict(fields)
        self._total, self._retries, self._backoff, self._max_bytes = total, retries, backoff, max_bytes
        self._client = httpx.AsyncClient(
            headers={"content-type": "application/json", **({"authorization": f"Bearer {api_key}"} if api_key else {})},
            timeout=httpx.Timeout(read, connect=connect, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
        )
        self._slots = asyncio.Semaphore(concurrency)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._calls: dict[Future[tuple[int, bytes]], Request | None] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tito {self.kind}", daemon=True)
        self._thread.start()

    def complete(self, request: Request, *, max_tokens: int, sampling: Mapping[str, Any] = NOTHING) -> Completion:
        """Samples after `request.ids`. `sampling` are this call's own parameters. Raises EngineError."""
        raise NotImplementedError

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] = NOTHING,
    ) -> Ids:
        """The prompt ids, int32, that the engine itself makes of messages. Raises EngineError."""
        raise NotImplementedError

    def parsers(self) -> Parsers | None:
        """The parsers that make its messages; None where it has none that do, or does not tell. Raises EngineError."""
        return None

    def cancel(self, request: Request | None = None) -> None:
        """Ends the calls of this request, or all of them; each raises an EngineError of the kind `cancelled`."""
        with self._lock:
            calls = [call for call, of in self._calls.items() if request is None or of is request]
        for call in calls:
            call.cancel()

    def close(self) -> None:
        """Cancels what is in flight and lets the connections go. Harmless a second time, and in a process that forked."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._loop.is_closed():
                return
        self.cancel()
        asyncio.run_coroutine_threadsafe(self._let_go(), self._loop).result()
        with self._lock:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def error(self, kind: Kind, what: str, **where: Any) -> EngineError:
        return EngineError(f"{self.kind} at {self.url} {what}", kind=kind, **where)

    def post(self, path: str, body: Mapping[str, Any], request: Request | None = None) -> dict[str, Any]:
        """The JSON object that the engine answers. Raises EngineError."""
        try:
            data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as cause:
            raise EngineError(
                f"a request is no JSON ({cause}); give plain values in sampling and fields", kind="usage"
            ) from None
        return self._asked(path, data, request)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object that the engine answers where nothing is sent. Raises EngineError."""
        return self._asked(path, None, None)

    def _asked(self, path: str, data: bytes | None, request: Request | None) -> dict[str, Any]:
        if os.getpid() != self._process:  # before the lock, which may have been held when the process forked
            raise self.error(
                "usage",
                f"was opened by process {self._process}, from which this one ({os.getpid()}) forked, and its thread is not here; "
                "open one in each process",
            )
        with self._lock:
            if self._loop.is_closed():
                raise self.error("cancelled", "was closed; open another engine")
            call = asyncio.run_coroutine_threadsafe(self._answer(path, data), self._loop)
            self._calls[call] = request
        try:
            status, answer = call.result()
        except CancelledError:
            raise self.error("cancelled", "was told to cancel this call; nothing was stored") from None
        finally:
            call.cancel()
            with self._lock:
                del self._calls[call]
        if status != 200:
            raise self._refused(status, answer)
        try:
            made = orjson.loads(answer)
        except ValueError as cause:
            raise self.error(
                "answer", f"answered what is no JSON ({cause}): {_clip(answer)}; is it an engine?"
            ) from None
        if not isinstance(made, dict):
            raise self.error("answer", f"answered a JSON {type(made).__name__}, not an object; is it an engine?")
        return made

    def merged(self, ours: dict[str, Any], *given: Mapping[str, Any]) -> dict[str, Any]:
        """A body of what was given and `ours`. Raises EngineError where a caller would set one of ours."""
        if taken := sorted({key for one in given for key in one if key in ours}):
            raise EngineError(f"{taken[0]} is set by tito itself in every request; leave it out", kind="usage")
        return {key: value for one in (*given, ours) for key, value in one.items()}

    def completion(
        self,
        request: Request,
        *,
        ids: Any,
        logprobs: Any,
        prompt: Any,
        finish: Any,
        matched: Any = None,
        message: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any],
    ) -> Completion:
        """A completion whose ids are proven to be those that were sampled after `request.ids`.

        `ids`, `logprobs` and `prompt` are what an answer holds, whatever that is. Raises EngineError. What lies past a
        stop string only the vocabulary can tell: committing the completion refuses it. A `message` whose calls can't be
        whole is left out, so that the family's own parser reads the ids.
        """
        if finish == "abort":
            raise self.error("fault", f"aborted the call ({meta.get('finish_reason')}); sample this turn again")
        for name, said, values in (
            ("ids", "token ids", _int_ids(ids)),
            ("logprobs", "log-probs", isinstance(logprobs, list) and logprobs),
            ("prompt", "prompt ids", _int_ids(prompt)),
        ):
            if not values:
                raise self.error("answer", f"returned no {said}, and text is never encoded again; {self.how[name]}")
        sent, got = np.asarray(request.ids), np.asarray(prompt)
        if not np.array_equal(sent, got):
            first = shared_length(sent, got)
            one, two = (str(run[first]) if first < len(run) else "nothing" for run in (sent, got))
            raise self.error(
                "answer",
                f"sampled after other prompt ids than were sent: index {first} was {one} and came back as {two} "
                f"({len(sent)} ids sent, {len(got)} used); something before the model encodes them again, a multimodal "
                "processor for one: serve without it",
                first_index=first,
            )
        if len(ids) != len(logprobs) or None in logprobs:
            known = sum(one is not None for one in logprobs)
            raise self.error("answer", f"returned {len(ids)} ids and {known} log-probs; {self.how['logprobs']}")
        if isinstance(matched, int) and matched in ids[:-1]:
            first = ids.index(matched) + 1
            raise self.error(
                "answer",
                f"returned {len(ids) - first} ids after the stop token {matched} at {first - 1}, which nobody may train "
                "on; serve without speculation, or with a release that cuts them off",
                first_index=first,
            )
        if isinstance(matched, int) and matched not in ids:
            raise self.error(
                "answer",
                f"was ended by the stop token {matched} and did not return it among its {len(ids)} ids, so it would never be "
                "trained; serve with a release that returns it",
            )
        kept = {key: value for key, value in meta.items() if value is not None}
        stop = matched if isinstance(matched, str) else None
        try:
            return Completion(ids, logprobs, finish, stop=stop, message=_whole(message, finish), meta=kept)
        except CompletionError as cause:
            raise self.error("answer", f"answered what can't be kept: {cause}") from cause

    def own_render(self, ours: dict[str, Any], prompt: Callable[[dict[str, Any]], Any]) -> Ids:
        """The prompt ids, int32, that the chat endpoint makes of `ours`; `prompt` finds them. Raises EngineError."""
        ids = _int_ids(prompt(self.post("/v1/chat/completions", self.merged({**ours, "max_tokens": 1}, self._fields))))
        if not ids:
            raise self.error("answer", f"returned no prompt ids; {self.how['render']}")
        return np.array(ids, dtype=np.int32)

    async def _let_go(self) -> None:
        await self._client.aclose()
        await self._others()
        await self._loop.shutdown_asyncgens()  # the layers of an answer that was broken off; each is closed by a task
        await self._others()

    async def _others(self) -> None:
        await asyncio.sleep(0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)

    async def _answer(self, path: str, data: bytes | None) -> tuple[int, bytes]:
        import httpx

        attempt = 0
        async with self._slots:
            try:
                async with asyncio.timeout(self._total):
                    while True:
                        try:
                            return await self._once(path, data)
                        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout) as cause:
                            attempt += 1
                            if attempt > self._retries:
                                raise self._unreached(cause, attempt) from None
                            await asyncio.sleep(self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1))
            except httpx.TimeoutException as cause:
                raise self._slow(f"{type(cause).__name__} after {self._client.timeout.read:g} s of silence") from None
            except TimeoutError:
                raise self._slow(f"{self._total:g} s in all") from None
            except httpx.HTTPError as cause:
                raise self.error(
                    "usage", f"can't be asked ({type(cause).__name__}: {cause}); correct the URL"
                ) from None

    async def _once(self, path: str, data: bytes | None) -> tuple[int, bytes]:
        body = bytearray()
        method = "GET" if data is None else "POST"
        async with self._client.stream(method, self.url + path, content=data) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._max_bytes:
                    raise self.error("answer", f"answers more than {self._max_bytes} bytes; allow more, or sample less")
        return response.status_code, bytes(body)

    def _slow(self, limit: str) -> EngineError:
        return self.error("timeout", f"did not answer in time ({limit}); sample less at once, or allow it more")

    def _unreached(self, cause: httpx.TransportError, attempts: int) -> EngineError:
        said = f"{type(cause).__name__}: {cause}".rstrip(": ")
        return self.error(
            "unreached",
            f"could not be reached, or broke off, {attempts} time(s) ({said}); see whether it runs, and its log. "
            "Every committed turn is kept",
        )

    def _refused(self, status: int, answer: bytes) -> EngineError:
        said = f"(HTTP {status}): {_message(answer)}"
        if status in (429, 503):
            return self.error("overload", f"is overloaded {said}; send less at once, or sample this turn again later")
        if status >= 500:
            return self.error("fault", f"failed {said}; its log says why")
        if status in (401, 403):
            return self.error("usage", f"wants another API key {said}; pass the key that it was started with")
        if status == 404:
            return self.error(
                "usage",
                f"has no such endpoint or model {said}; is it this kind of engine, is that its URL, and does it serve that "
                "model?",
            )
        if _TOO_LONG.search(said):
            return self.error(
                "context",
                f"has no room for the prompt and what is to be sampled {said}; end this session, or sample fewer",
            )
        return self.error("usage", f"refused the request {said}; correct it, sending it again changes nothing")


def conversation(request: Request) -> list[dict[str, Any]]:
    """All messages of a request's conversation, in the chat-completions format."""
    before = request.parent.conversation() if request.parent else ()
    return [message.wire() for message in (*before, *request.messages)]


def offered(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    return [{"type": tool.type, "function": tool.function} for tool in tools] or None


def mapping(value: Any) -> dict[str, Any]:
    """The object out of an answer, an empty one where something else stands there."""
    return value if isinstance(value, dict) else {}


def choice_of(engine: HTTPEngine, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The one choice of an answer in OpenAI's format. Raises EngineError."""
    match answer.get("choices"):
        case [dict() as choice]:
            return choice
    raise engine.error(
        "answer", f"answered without one choice: {_clip(orjson.dumps(answer))}; is it this kind of engine?"
    )


def _whole(message: Mapping[str, Any] | None, finish: Any) -> Mapping[str, Any] | None:
    """The message of an engine's parser; None where it made calls of an answer that was cut, or of what is no JSON object."""
    calls = (message or {}).get("tool_calls")
    if not calls:
        return message
    try:
        made = [orjson.loads(call["function"]["arguments"]) for call in calls]
    except (TypeError, KeyError, ValueError):
        return None
    return message if finish != "length" and all(isinstance(one, dict) for one in made) else None


def _int_ids(values: Any) -> list[int] | None:
    """A list of token ids out of an answer, None where it is none."""
    right = isinstance(values, list) and all(type(one) is int for one in values)
    return values if right else None


def _message(answer: bytes) -> str:
    try:
        made = orjson.loads(answer)
    except ValueError:
        return _clip(answer)
    for key in ("error", "message", "detail"):
        if isinstance(made, dict) and made.get(key):
            made = made[key]
    return made[:_SAID] if isinstance(made, str) else _clip(orjson.dumps(made))


def _clip(data: bytes) -> str:
    return data[:_SAID].decode(errors="replace")
