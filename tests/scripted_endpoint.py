"""An OpenAI-compatible server on loopback that does what a test tells it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ScriptedEndpoint:
    """Answers each request with completions that depend on prompt, seed and number alone, after what ``script`` holds.

    An entry of the script is for one request: a status with its error code, ``cut`` (the connection ends without an
    answer) or a function from the request to the choices.
    """

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.under_way = self.most_under_way = 0
        self.honours_n = True
        self.refuses_n = False
        self.tells_usage = True
        self.delay = 0.0
        self.lock = threading.Lock()
        self.url = ""

    def choices(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        count = request["n"] if self.honours_n else 1
        prompt = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
        return [choice(f"{prompt} {request['seed'] % 1000}+{i}: \\boxed{{{i % 3}}}", request) for i in range(count)]


def choice(text: str | None, request: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    """A choice in the form of the endpoint that was asked."""
    what = {"message": {"role": "assistant", "content": text}} if "messages" in request else {"text": text}
    return {"index": 0, "finish_reason": finish_reason, "logprobs": None, **what}


@contextmanager
def scripted_endpoint() -> Iterator[ScriptedEndpoint]:
    """The server, for as long as the block lasts."""
    endpoint = ScriptedEndpoint()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with endpoint.lock:
                endpoint.asked.append(request)
                endpoint.paths.append(self.path)
                endpoint.keys.append(self.headers.get("authorization", ""))
                endpoint.under_way += 1
                endpoint.most_under_way = max(endpoint.most_under_way, endpoint.under_way)
                step = endpoint.script.pop(0) if endpoint.script else endpoint.choices
            time.sleep(endpoint.delay)
            try:
                self.answer(request, step)
            finally:
                with endpoint.lock:
                    endpoint.under_way -= 1

        def answer(self, request: dict[str, Any], step: Any) -> None:
            if step == "cut":
                self.close_connection = True
                return
            if endpoint.refuses_n and request["n"] > 1:
                step = (400, "n must be 1")
            if isinstance(step, tuple):
                status, message = step
                self.send(status, {"error": {"message": message, "type": "error", "param": None, "code": None}})
                return
            choices = step(request)
            content: dict[str, Any] = {"id": "1", "object": "o", "created": 0, "model": "m", "choices": choices}
            if endpoint.tells_usage:
                content["usage"] = {"prompt_tokens": 1, "completion_tokens": 5 * len(choices), "total_tokens": 1}
            self.send(200, content)

        def send(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.send_header("retry-after-ms", "1")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
