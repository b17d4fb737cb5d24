"""A recording engine behind TRL's two ways to vLLM, each at its lowest seam that runs without a GPU.

Colocate mode: the class ``LLM`` of the package vllm. Server mode: TRL's own client over HTTP, against a server on
loopback that speaks vLLM's endpoints; only the transfer of weights, which needs NCCL, is left out.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import trl.generation.vllm_client as client_module
import trl.generation.vllm_generation as generation_module

from tiny_models import tokenizer
from trl_runs import EOS

Logps = Callable[[list[int], list[int]], list[float]]


class RecordingEngine:
    """Records every prompt it is to complete, and how often; completions are random, of varied length, all different.

    Args:
        logps: log-probs of a completion's tokens, from the ids of prompt and completion.
    """

    def __init__(self, logps: Logps = lambda prompt, completion: [-1.0] * len(completion)) -> None:
        self.logps = logps
        self.asked: list[tuple[str, int]] = []
        self.calls = 0
        self.completions: list[str] = []
        self.weights_synced = 0
        self.tokenizer = tokenizer()

    def complete(self, prompt_ids: list[int], count: int) -> list[tuple[list[int], list[float]]]:
        """``count`` completions of a prompt, with their log-probs."""
        self.asked.append((self.tokenizer.decode(prompt_ids), count))
        found = []
        for _ in range(count):
            rng = random.Random(len(self.completions))
            ids = [*(rng.choice(range(14, 40)) for _ in range(rng.randint(3, 5))), EOS]
            self.completions.append(self.tokenizer.decode(ids, skip_special_tokens=True))
            found.append((ids, self.logps(prompt_ids, ids)))
        return found


@contextmanager
def fake_vllm(mode: str, engine: RecordingEngine, monkeypatch: Any) -> Iterator[dict[str, Any]]:
    """Within: TRL drives ``engine``; yields the settings of TRL that ask for it."""
    for module in (client_module, generation_module):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_: True)
    if mode == "colocate":
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # TRL sets them for good
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        monkeypatch.setattr(generation_module, "LLM", _llm_class(engine), raising=False)
        monkeypatch.setattr(generation_module, "SamplingParams", SimpleNamespace, raising=False)
        yield {"use_vllm": True, "vllm_mode": "colocate"}
        return

    def synced(client: Any, metadata: Any, parameters: Any) -> None:
        engine.weights_synced += len(list(parameters)) == len(metadata)

    monkeypatch.setattr(client_module.VLLMClient, "init_communicator", lambda *_, **__: None)
    monkeypatch.setattr(client_module.VLLMClient, "update_named_params", synced)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(engine))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _llm_class(engine: RecordingEngine) -> type:
    class LLM:
        def __init__(self, **settings: Any) -> None:
            def load(weights: Any) -> None:
                engine.weights_synced += 1

            model = SimpleNamespace(load_weights=load)
            worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
            self.llm_engine = SimpleNamespace(
                model_executor=SimpleNamespace(driver_worker=worker),
                model_config=SimpleNamespace(max_model_len=settings["max_model_len"]),
            )

        def reset_prefix_cache(self) -> None:
            pass

        def generate(self, prompts: list[dict[str, Any]], sampling_params: Any, use_tqdm: bool) -> list[Any]:
            engine.calls += 1
            outputs = []
            for prompt in prompts:
                ids = prompt["prompt_token_ids"]
                completed = engine.complete(ids, sampling_params.n)
                found = [
                    SimpleNamespace(
                        token_ids=tokens,
                        logprobs=[{t: SimpleNamespace(rank=1, logprob=x)} for t, x in zip(tokens, logps, strict=True)],
                    )
                    for tokens, logps in completed
                ]
                outputs.append(SimpleNamespace(prompt_token_ids=ids, outputs=found))
            return outputs

    return LLM


def _handler(engine: RecordingEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            model = {"model_config": {"logprobs_mode": "processed_logprobs"}}
            self.answer({"data": [{"id": "policy"}]} if self.path == "/v1/models" else {"vllm_config": model})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path != "/v1/completions":
                self.answer({"success": True})
                return
            request = json.loads(body)
            engine.calls += 1
            self.answer({"choices": [choice for ids in request["prompt"] for choice in choices(ids, request["n"])]})

        def answer(self, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    def choices(prompt_ids: list[int], count: int) -> list[dict[str, Any]]:
        return [
            {
                "prompt_token_ids": prompt_ids,
                "token_ids": tokens,
                "logprobs": {
                    "tokens": [f"token_id:{token}" for token in tokens],
                    "token_logprobs": logps,
                    "top_logprobs": [{f"token_id:{token}": x} for token, x in zip(tokens, logps, strict=True)],
                },
            }
            for tokens, logps in engine.complete(prompt_ids, count)
        ]

    return Handler
