"""``python -m harness.reference.server``: the reference engine behind an OpenAI-compatible HTTP server, in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import importlib.metadata
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import uvloop

from harness.alarm import Alarm
from harness.clock import NS_PER_S, MonotonicClock
from harness.errors import TrigpointError
from harness.reference import ENGINE_VERSION
from harness.reference.api import (
    CHAT_GENERATION_OVERHEAD,
    CHAT_MESSAGE_OVERHEAD,
    ApiError,
    Asked,
    Limits,
    chat_ids,
    check_model,
    parse_ask,
    parse_body,
    prompt_ids,
)
from harness.reference.arguments import cost_model, parse
from harness.reference.connection import Connection, Request
from harness.reference.driver import Driver
from harness.reference.engine import Engine
from harness.reference.memory_arguments import budgets_of, rules_of
from harness.reference.metrics import Page
from harness.reference.prefix import PrefixStore, chain_of
from harness.reference.registry import make_policy
from harness.reference.replies import Reply, error_event
from harness.reference.tokens import VOCAB_SIZE, Truth, model_digest, natural_length, tokenizer_digest
from harness.vocabulary import SIMULATED_OWNER

_TEXT_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class _Answer:
    """The sink of one request: turns tokens into response bytes."""

    __slots__ = ("_begun", "_connection", "_done", "_refused", "_reply", "_stream")

    def __init__(
        self, connection: Connection, reply: Reply, done: Callable[[Connection], None], *, stream: bool, begun: bool, refused: int
    ) -> None:
        self._connection = connection
        self._reply = reply
        self._done = done
        self._stream = stream
        self._begun = begun
        self._refused = refused

    def decline(self, reason: str) -> None:
        """Answer as a full queue is answered; a policy that declines gets no stream begun before the first token.

        A stream that began all the same (a preempted request with no room to be kept in) is cut after an error event.
        """
        self._done(self._connection)
        error = ApiError(self._refused, f"The scheduler declined the request: {reason}.")
        if self._stream and self._begun:
            self._connection.write(error_event(error.body()))
            self._connection.close()
        else:
            self._connection.respond(error.status, error.body())

    def fail(self) -> None:
        """Answer 500; a stream that began is cut after an error event, so that nobody takes it for whole."""
        self._done(self._connection)
        body = ApiError(500, "The engine failed.").body()
        if self._begun:
            self._connection.write(error_event(body))
            self._connection.close()
        else:
            self._connection.respond(500, body)

    def reused(self, tokens: int) -> None:
        """Keep for the usage how much of the prompt was not computed."""
        self._reply.cached_tokens = tokens

    def publish(self, token: int, finish: str | None) -> None:
        """Send one token, or keep it until the answer is whole."""
        if finish is not None:
            self._done(self._connection)
        if self._stream:
            if not self._begun:
                self._begun = True
                self._connection.start_stream()
            self._connection.write(self._reply.stream(token, finish))
            if finish is not None:
                self._connection.finish()
            return
        self._reply.collect(token)
        if finish is not None:
            self._connection.respond(200, self._reply.body(finish))


class Application:
    """Routes requests; owns the driver and knows which connection waits for which request."""

    def __init__(self, args: argparse.Namespace, driver: Driver) -> None:
        self._args = args
        self._driver = driver
        self._page = Page(driver, args.metrics_names, args.model)
        self._limits = Limits(args.model, args.max_model_len, args.seed)
        self._waiting_for: dict[Connection, str] = {}
        self._count = 0
        self._info = server_info(args)
        self._routes: dict[tuple[str, str], Callable[[Connection, Request], None]] = {
            ("GET", "/health"): lambda connection, _: connection.respond(200, b"", "text/plain"),
            ("GET", "/version"): lambda connection, _: connection.respond(200, orjson.dumps({"version": ENGINE_VERSION})),
            ("GET", "/metrics"): lambda connection, _: connection.respond(200, self._page.text(), _TEXT_PLAIN),
            ("GET", "/server_info"): lambda connection, _: connection.respond(200, orjson.dumps(self._info)),
            ("GET", "/v1/models"): lambda connection, _: connection.respond(200, orjson.dumps(_models(args))),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/flush_cache"): self._flush,
            ("POST", "/v1/completions"): lambda connection, request: self._generate(connection, request, chat=False),
            ("POST", "/v1/chat/completions"): lambda connection, request: self._generate(connection, request, chat=True),
        }

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer one request; every error takes OpenAI's shape."""
        try:
            route = self._routes.get((request.method, request.path))
            if route is None:
                known = any(path == request.path for _, path in self._routes)
                raise ApiError(405, "Method not allowed.") if known else ApiError(404, "Not found.")
            route(connection, request)
        except ApiError as error:
            connection.respond(error.status, error.body())

    def lost(self, connection: Connection) -> None:
        """Abort what the client was waiting for."""
        request_id = self._waiting_for.pop(connection, None)
        if request_id is not None:
            self._driver.detach(request_id)

    def _served(self, connection: Connection) -> None:
        del self._waiting_for[connection]

    def _generate(self, connection: Connection, request: Request, *, chat: bool) -> None:
        asked = parse_ask(parse_body(request.body), self._limits, chat=chat)
        engine = self._driver.engine
        if self._args.max_queue is not None and engine.waiting >= self._args.max_queue:
            raise ApiError(self._args.overload_status, f"The queue is full: {engine.waiting} requests wait.")
        if not engine.knows(asked.client) and engine.clients >= self._args.max_clients:
            raise ApiError(self._args.overload_status, f"Too many users: {engine.clients} are told apart, and no more.", "user")
        self._count += 1
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{self._count:08d}"
        reply = Reply(asked, request_id, int(time.time()), self._args.model)
        begun = asked.stream and not engine.core.policy.declines
        if begun:
            connection.start_stream()
        self._waiting_for[connection] = request_id
        truth = self._truth(asked)
        chain = chain_of(asked.ids, self._args.prefix_block) if self._args.prefix_cache_tokens else ()
        engine.submit(
            request_id,
            asked.prompt_tokens,
            asked.max_tokens,
            truth,
            priority=asked.priority,
            client=asked.client,
            arrival_ns=self._driver.now_ns(),
            ttft_ns=asked.ttft_ns,
            tbt_ns=asked.tbt_ns,
            chain=chain,
        )
        refused = self._args.overload_status
        answer = _Answer(connection, reply, self._served, stream=asked.stream, begun=begun, refused=refused)
        self._driver.attach(request_id, answer)

    def _truth(self, asked: Asked) -> Truth:
        natural = None if asked.ignore_eos else natural_length(asked.seed, self._args.natural_mean, asked.min_tokens)
        return Truth(asked.seed, natural)

    def _flush(self, connection: Connection, request: Request) -> None:
        del request
        if not self._driver.engine.flush():
            raise ApiError(409, "Requests are in progress: the prefix store is emptied between them only.")
        connection.respond(200, b"", "text/plain")

    def _tokenize(self, connection: Connection, request: Request) -> None:
        fields = parse_body(request.body)
        if "model" in fields:
            check_model(fields, self._args.model)
        ids = chat_ids(fields["messages"]) if "messages" in fields else prompt_ids(fields.get("prompt"))
        connection.respond(200, orjson.dumps({"count": len(ids), "max_model_len": self._args.max_model_len, "tokens": list(ids)}))


def server_info(args: argparse.Namespace) -> dict[str, Any]:
    """What this server says about itself: effective configuration (ns, tokens), digests, packages."""
    config = {name: value for name, value in vars(args).items() if name not in {"host", "port"}}
    policy = make_policy(args.policy, args.policy_parameters)
    config["policy_parameters"] = policy.parameters
    return {
        "engine": "reference",
        "version": ENGINE_VERSION,
        "evidence_class": "synthetic",
        "effective_config": config,
        "dtype": args.dtype,
        "quantization": "none",
        "kv_capacity_tokens": args.kv_cache_tokens,
        "prefix_caching": args.prefix_cache_tokens > 0,
        "block_size": args.prefix_block,
        "vocab_size": VOCAB_SIZE,
        "reads_limits": policy.reads_limits,
        "chat_overhead_tokens": CHAT_MESSAGE_OVERHEAD + CHAT_GENERATION_OVERHEAD,
        "model_digest": model_digest(args.natural_mean),
        "tokenizer_digest": tokenizer_digest(),
        "packages": packages_digest(),
        "python": platform.python_version(),
    }


def packages_digest() -> str:
    """sha256 over the sorted ``name==version`` lines of the packages this process can import."""
    names = sorted({f"{dist.metadata['Name'].lower()}=={dist.version}" for dist in importlib.metadata.distributions()})
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _models(args: argparse.Namespace) -> dict[str, Any]:
    card = {"id": args.model, "object": "model", "owned_by": SIMULATED_OWNER, "created": 0, "max_model_len": args.max_model_len}
    return {"object": "list", "data": [card]}


def make_engine(args: argparse.Namespace) -> Engine:
    """Build the engine the arguments describe. Raises UsageError for an unknown policy."""
    costs = cost_model(args)
    prefix = PrefixStore(args.prefix_block, args.prefix_cache_tokens, remote=args.prefix_remote) if args.prefix_cache_tokens else None
    policy = make_policy(args.policy, args.policy_parameters)
    return Engine(policy, budgets_of(args), costs, prefix=prefix, rules=rules_of(args))


def _warm(args: argparse.Namespace) -> None:
    """Run one request through an engine that is thrown away: the first iteration of a process is some ms slower than any other."""
    engine = make_engine(args)
    engine.submit("warm", 1, 2, Truth(0, None))
    while engine.begin(0) is not None:
        engine.complete(0)


async def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; open connections are then closed, unfinished answers cut.

    Return 0, or 3 when the engine broke: every answer in progress then ended with an error, and nothing more is served.
    """
    loop = asyncio.get_running_loop()
    _warm(args)
    stop = asyncio.Event()
    driver = Driver(make_engine(args), MonotonicClock(), Alarm(), loop, stop.set)
    app = Application(args, driver)
    connections: set[Connection] = set()
    server = await loop.create_server(lambda: Connection(app, connections), args.host, args.port, backlog=1024)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # What exists now lives as long as the process; the collector need not walk it in the middle of an iteration.
    gc.collect()
    gc.freeze()
    _log(f"listening on {args.host}:{server.sockets[0].getsockname()[1]} policy={args.policy} version={ENGINE_VERSION}")
    await stop.wait()
    server.close()
    for connection in list(connections):
        connection.close()
    driver.close()
    late = driver.lateness
    _log(f"stopped after {late.iterations} iterations, worst lateness {late.worst_ns / NS_PER_S:.6f} s, restarts {late.restarts}")
    if driver.fault is None:
        return 0
    _log("the engine failed:\n" + "".join(traceback.format_exception(driver.fault)))
    return 3


def _log(line: str) -> None:
    sys.stderr.write(f"reference: {line}\n")
    sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; exit 2 for wrong arguments, 3 when the port cannot be had or the engine broke."""
    try:
        args = parse(argv)
        return uvloop.run(serve(args))
    except TrigpointError as error:
        _log(str(error))
        return error.exit_code
    except OSError as error:
        _log(f"{error.strerror or error} (host or port not available)")
        return 3


if __name__ == "__main__":
    raise SystemExit(main())
