"""Completions of questions: planned in batches, drawn by a backend, appended to a file that can be taken up again.

The backends: a transformers model, vLLM in this process, any OpenAI-compatible endpoint. None of them is imported
before it is used.
"""

from .arrived import Arrived
from .endpoint import EndpointSampler
from .files import keep_whole_batches, sample_to_file
from .plan import Batch, Completion, Prompt, Sampler, SamplingSettings, plan_batches
from .transformers import TransformersSampler, model_fingerprint
from .vllm import VLLMSampler

__all__ = [
    "Arrived",
    "Batch",
    "Completion",
    "EndpointSampler",
    "Prompt",
    "Sampler",
    "SamplingSettings",
    "TransformersSampler",
    "VLLMSampler",
    "keep_whole_batches",
    "model_fingerprint",
    "plan_batches",
    "sample_to_file",
]
