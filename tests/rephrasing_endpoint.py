"""An OpenAI-compatible server on loopback that rephrases questions of one kind, or misbehaves as told."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

QUESTION = "Tom has {a} apples in a basket. He buys {b} more apples at the market. How many apples does he have now?"
WORDINGS = [
    "There are {a} apples in the basket of Tom, who then purchases another {b} of them at a market. What is the "
    "number of apples that he owns at the end?",
    "Given: a basket with {a} apples that belongs to Tom; a purchase of {b} apples at the market. Find: how many "
    "apples Tom has after it.",
    "How many apples does Tom own in the end, if the market sells him {b} apples and his basket held {a} before?",
    "Mia keeps {a} pears in a box. At the shop she gets {b} further pears. How many pears are hers now?",
    "Find the total of apples that are Tom's once {b} bought ones from the market have joined the {a} of his basket.",
    "What is Tom's total of apples? His basket contains {a} of them, and the market trip adds {b}.",
    "After a visit to the market, where {b} apples were bought, Tom counts everything, including the {a} apples that "
    "lay in his basket before. How many apples does he count?",
    "Tom carries a basket. In it lie {a} apples. Along comes a market, and with it {b} new apples for Tom. Determine "
    "how many apples he carries.",
    "Suppose that Tom begins with {a} apples and the market provides {b} more. Calculate how many apples that makes.",
    "A basket, {a} apples inside; a market, {b} apples sold to Tom. State how many apples belong to Tom after that.",
]
# What the templates say of the five transformations that suit a question without variables.
TASKS = ["Change the wording. ", "Change the format. ", "Change the order", "Change the setting", "together"]
Behaviour = Callable[[dict[str, Any], int], Any]


def questions(count: int) -> list[dict[str, Any]]:
    rows = ((f"q{i}", 11 + 7 * i, 12 + 5 * i) for i in range(count))
    return [{"id": name, "question": QUESTION.format(a=a, b=b), "answer": str(a + b)} for name, a, b in rows]


def tag_of(prompt: str) -> str:
    return re.findall(r"<(rephrased-\w+)>", prompt)[0]


def rephrasing(request: dict[str, Any]) -> str:
    """A good rephrasing that depends on the request alone."""
    first = request["messages"][0]["content"]
    body = re.search(r"<question-(\w+)>\n(.*?)\n</question-\1>", first, re.DOTALL)
    assert body is not None
    a, b = re.findall(r"\d+", body[2])[:2]
    kind = next(number for number, words in enumerate(TASKS) if words in first)
    version = re.search(r"This is version (\d+)", first)
    kind += 5 * (int(version[1]) - 1) if version else 0
    kind += 3 * (len(request["messages"]) // 2)
    return WORDINGS[kind % len(WORDINGS)].format(a=a, b=b)


def good(request: dict[str, Any], number: int = 0) -> Any:
    tag = tag_of(request["messages"][0]["content"])
    return reply(f"Here it is.\n<{tag}>\n{rephrasing(request)}\n</{tag}>")


def tagged(request: dict[str, Any], text: str) -> Any:
    tag = tag_of(request["messages"][0]["content"])
    return reply(f"<{tag}>{text}</{tag}>")


def reply(text: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


def failure(status: int, message: str, code: str | None = None, **headers: str) -> Any:
    return status, {"error": {"message": message, "type": "error", "param": None, "code": code}}, headers


class RephrasingEndpoint:
    """``behaviour`` gets the request and its number, and gives a reply, a failure, or ``hang``, ``cut``, ``half`` or
    ``malformed``. ``answered`` counts the requests that were answered by a completion, by their content.
    """

    def __init__(self, behaviour: Behaviour = good) -> None:
        self.behaviour = behaviour
        self.delay = 0.0
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.keys: set[str] = set()
        self.answered: list[str] = []
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()
        self.url = ""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that was killed
            super().handle_error(request, client_address)


@contextmanager
def rephrasing_endpoint(behaviour: Behaviour = good) -> Iterator[RephrasingEndpoint]:
    """The server, for as long as the block lasts."""
    endpoint = RephrasingEndpoint(behaviour)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with endpoint.lock:
                number = len(endpoint.asked)
                endpoint.asked.append(request)
                endpoint.times.append(time.monotonic())
                endpoint.keys.add(self.headers.get("authorization", ""))
                endpoint.under_way += 1
                endpoint.most_under_way = max(endpoint.most_under_way, endpoint.under_way)
            try:
                action = endpoint.behaviour(request, number)
                time.sleep(endpoint.delay)
                self.act(request, action)
            finally:
                with endpoint.lock:
                    endpoint.under_way -= 1

        def act(self, request: dict[str, Any], action: Any) -> None:
            if action == "hang":
                time.sleep(1.5)
                self.close_connection = True
            elif action == "cut":
                self.close_connection = True
            elif action == "half":
                self.send(200, json.dumps(reply("half")).encode(), {}, cut=40)
            elif action == "malformed":
                self.send(200, b'{"choices": [', {})
            elif isinstance(action, tuple):
                status, content, headers = action
                self.send(status, json.dumps(content).encode(), headers)
            else:
                with endpoint.lock:
                    endpoint.answered.append(json.dumps(request, sort_keys=True))
                self.send(200, json.dumps(action).encode(), {})

        def send(self, status: int, body: bytes, headers: dict[str, str], cut: int = 0) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body[: len(body) - cut])
            if cut:
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
