"""From what a user writes to a set of questions."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from .. import tiny
from ..errors import UserError
from ..questions import QuestionSet, load_questions
from .benchmark import TEST
from .sets import BENCHMARKS

_EMBEDDED = "tiny"


def benchmark_names() -> list[str]:
    """The names that ``load_benchmark`` knows of itself."""
    return [*BENCHMARKS, _EMBEDDED]


def load_benchmark(spec: str, revision: str | None = None) -> QuestionSet:
    """The questions that ``spec`` names, with the prompt template of their set.

    ==========================  =======================================================================
    ``NAME``, ``NAME/SPLIT``    a named set, from the Hub; the split is ``test`` by default
    ``NAME@REVISION``           the same, as of a commit, branch or tag of the data set; also after SPLIT
    ``NAME=FILE``               the same set from a file, as published or as question records
    ``FILE``                    a file of question records; it wins over a set of that name
    ==========================  =======================================================================

    Sets of other packages (entry points ``ta_grpo.question_sets``) can be named as in ``load_questions``, with its
    default split.

    Args:
        spec: see above.
        revision: the same as ``@REVISION``.

    Raises:
        UserError: an unknown name or split, a set that cannot be loaded or is not as it should be, a bad file.
    """
    if Path(spec).is_file():
        _refuse_revision(spec, revision)
        return load_questions(spec)
    name, rest = _split_name(spec)
    split = rest[1:] if rest.startswith("/") else TEST + rest
    if name in BENCHMARKS:
        return BENCHMARKS[name].questions(split, revision)
    if name == _EMBEDDED:
        if "=" in split or "@" in split:
            raise UserError(f"{spec}: the embedded set has neither files nor revisions; name {name}/SPLIT")
        _refuse_revision(spec, revision)
        return tiny.questions(split)
    if rest.startswith(("=", "@")):
        near = difflib.get_close_matches(name, benchmark_names(), n=1)
        nearest = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{spec}: no benchmark {name!r}; the benchmarks are: {', '.join(benchmark_names())}{nearest}")
    _refuse_revision(spec, revision)
    return load_questions(spec)


def _split_name(spec: str) -> tuple[str, str]:
    """The name, and from the first of ``/ @ =`` on the rest."""
    name = re.split("[/@=]", spec, maxsplit=1)[0]
    return name, spec[len(name) :]


def _refuse_revision(spec: str, revision: str | None) -> None:
    if revision:
        raise UserError(f"{spec} has no revision; leave out {revision!r}")
