"""One expression against another: latex2sympy reads them, math-verify compares them.

Runs in the worker processes only. Three things are ours: numbers are compared by relative, not absolute, error
(math-verify rounds to six decimals, to which all tiny numbers are equal); symbols keep their case, and but for ``i``
stand for real numbers; and expressions in variables are evaluated at a few points first, because simplifications have
thresholds of their own and give up on much that is equal.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
from fractions import Fraction
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.logic import And
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from ta_grpo.verifier.judge import UnusableGoldError
from ta_grpo.verifier.notation import split_at
from ta_grpo.verifier.numerals import Number, parse_number, same_number

# sympy's annotations are far wider than what it returns.
Expr = Any

# Its only messages are that its timeouts are off, which is meant: SIGALRM cannot interrupt big integers.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Two exact expressions that agree to this relative error are the same number; N raises its own precision as needed.
_SAME_EXACTLY = sympy.Float("1e-25")
# Floats inside an expression (`2.5\\pi`) were written with unknown care.
_SAME_ROUNDED = sympy.Float("1e-6")
# In this order several neighbours are both positive and two are both negative: variables take neighbouring values.
_POINTS = tuple(
    sympy.Rational(*point)
    for point in ((7, 5), (23, 7), (-11, 6), (-41, 6), (29, 8), (2, 9), (13, 4), (5, 11), (-3, 7))
)
_ENOUGH_POINTS = 4
# Functions with steps may agree at a few points and differ elsewhere.
_NOT_ANALYTIC = (
    sympy.floor, sympy.ceiling, sympy.sign, sympy.Mod, sympy.Piecewise, sympy.Max, sympy.Min, sympy.Sum, sympy.Product,
    sympy.Integral, sympy.Derivative, sympy.Limit, AppliedUndef,
)  # fmt: skip
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_JUXTAPOSED_NUMBERS = re.compile(r"\d\s+\.?\d")


class MathVerify:
    """The ``Algebra`` of ``judge``."""

    def check_gold(self, gold: str) -> None:
        if _parse(gold) is None:
            raise UnusableGoldError(gold)

    def equal(self, gold: str, answer: str) -> bool:
        parsed_gold, parsed_answer = _parse(gold), _parse(answer)
        if parsed_gold is None:
            raise UnusableGoldError(gold)
        if parsed_answer is None:
            return False
        try:
            if _is_numeric(parsed_gold) and _is_numeric(parsed_answer):
                return _same_numeric(gold, parsed_gold, answer, parsed_answer)
            return _same_symbolic(parsed_gold, parsed_answer)
        except (ArithmeticError, AttributeError, NotImplementedError, TypeError, ValueError):
            # sympy's ways to say that an expression has no value (7/0, \infty - \infty, 3 < i).
            return False


@functools.lru_cache(maxsize=1024)
def _parse(text: str) -> Any:
    """The sympy object that the text is; None if it cannot be read."""
    alternatives = split_at(text, [r"\text{or}"])
    if len(alternatives) > 1:
        return _combined(alternatives, sympy.Union)
    together = split_at(text, [r"\text{and}"])
    if len(together) > 1:
        return _combined(together, sympy.Intersection)
    # Two numbers side by side are a typing error or a list, never a product.
    if _JUXTAPOSED_NUMBERS.search(text) or not text:
        return None
    degrees = r"\\frac{\1\\pi}{180}" if _TRIGONOMETRIC.search(text) else r"\1"
    text = re.sub(r"(\d+(?:\.\d+)?)\s*\^\\circ", degrees, text)
    try:
        parsed = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=_CONVERSION)
        if isinstance(parsed, sympy.Basic):
            parsed = parsed.xreplace({symbol: sympy.I for symbol in parsed.free_symbols if str(symbol) == "i"})
        return parsed
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001 - the parser raises bare exceptions of many kinds for what it cannot read
        return None


def _combined(parts: list[str], combine: Any) -> Any:
    """Inequalities in one variable, joined by "or" or "and", as the set of numbers they hold for."""
    relations = [_parse(part) for part in parts]
    if not all(isinstance(relation, (Relational, And)) for relation in relations):
        return None
    try:
        return combine(*(relation.as_set() for relation in relations))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - several variables, or an inequality sympy cannot solve
        return None


def _is_numeric(expression: Any) -> bool:
    return isinstance(expression, sympy.Expr) and expression.is_number


def _same_numeric(gold_text: str, gold: Expr, answer_text: str, answer: Expr) -> bool:
    """Two numbers, at least one of which is not written out."""
    gold_number, answer_number = parse_number(gold_text), parse_number(answer_text)
    if gold_number and not answer_number:
        return _same_as_written(gold_number, answer)
    if answer_number and not gold_number:
        return _same_as_written(answer_number, gold)
    return _same_evaluated(gold, answer)


def _same_as_written(number: Number, expression: Expr) -> bool:
    """A number that is written out against an expression: exactly, or a decimal by its own digits."""
    exactly = [number.value, number.value / 100] if number.percent else [number.value]
    if any(_same_evaluated(sympy.Rational(value.numerator, value.denominator), expression) for value in exactly):
        return True
    value = sympy.N(expression.doit())
    if number.ulp is None or not value.is_Float:
        return False
    rational: Any = sympy.Rational(value)
    return same_number(number, Number(Fraction(rational.p, rational.q)))


def _same_evaluated(one: Expr, other: Expr) -> bool:
    one, other = one.doit(), other.doit()
    if one == other:
        return True
    if one.is_Rational and other.is_Rational:
        return False
    tolerance = _SAME_ROUNDED if one.has(sympy.Float) or other.has(sympy.Float) else _SAME_EXACTLY
    return _close(one, other, tolerance)


def _close(one: Expr, other: Expr, tolerance: sympy.Float) -> bool:
    """Whether two numbers agree to a relative error; never for what is not finite."""
    scale = max(abs(sympy.N(one)), abs(sympy.N(other)))
    difference = abs(sympy.N(one - other))
    return bool(scale.is_finite and difference.is_finite and difference <= tolerance * scale)


def _same_symbolic(gold: Any, answer: Any) -> bool:
    """Expressions in variables, equations, inequalities and sets."""
    if not all(isinstance(side, sympy.Expr) for side in (gold, answer)):
        return math_verify.verify([gold], [answer], timeout_seconds=None, allow_set_relation_comp=True)
    verdicts = _agreement_at_points(gold, answer)
    if False in verdicts:
        return False
    if len(verdicts) >= _ENOUGH_POINTS and not gold.has(*_NOT_ANALYTIC) and not answer.has(*_NOT_ANALYTIC):
        return True
    return math_verify.verify([gold], [answer], timeout_seconds=None)


def _agreement_at_points(gold: Expr, answer: Expr) -> list[bool]:
    """Whether the expressions agree, at each of a few points where both are real numbers.

    One point where they do not is a proof. Agreement to 25 digits at several points of both signs is as good as one,
    for elementary functions.
    """
    tolerance = _SAME_ROUNDED if gold.has(sympy.Float) or answer.has(sympy.Float) else _SAME_EXACTLY
    gold, answer = gold.doit(), answer.doit()
    symbols = sorted({*gold.free_symbols, *answer.free_symbols}, key=str)
    verdicts = []
    for shift in range(len(_POINTS)):
        point = dict(zip(symbols, itertools.islice(itertools.cycle(_POINTS), shift, None), strict=False))
        one, other = gold.subs(point), answer.subs(point)
        if sympy.N(one).is_Float and sympy.N(other).is_Float:
            verdicts.append(_close(one, other, tolerance))
    return verdicts
