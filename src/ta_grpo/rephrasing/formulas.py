r"""The mathematics in a question: where it stands, its tokens in one spelling, and its variables.

Mathematics is what stands in ``$…$``, ``$$…$$``, ``\(…\)``, ``\[…\]`` or an equation environment, and in plain text a
run of numbers, single letters and signs with an operator in it (``x^2 + 1 = 5``). A dollar sign before an amount of
money opens nothing. Everything takes time linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_MAX_INLINE = 2_000
_DELIMITERS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)"}
_OPENING = re.compile(
    r"\\(?P<other>[^()\[b])|(?P<delimiter>\$\$|\\\[|\\\()|(?P<dollar>\$)"
    r"|\\begin\{(?P<environment>(?:align|equation|gather|multline|eqnarray|alignat|flalign)\*?)\}"
)
# Prose between two dollar signs: they are money.
_PROSE = re.compile(r"(?<![A-Za-z\\{])[A-Za-z]{3,}")
_TEXT_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|mbox|hbox|operatorname\*?)\s*\{(?P<content>[^{}]*)\}", re.DOTALL
)
_FONT = re.compile(r"\\(?:math(?:rm|bf|it|sf|tt|cal|bb|frak|scr|normal)|boldsymbol|bm|overline|widehat)(?![A-Za-z])")
FUNCTIONS = frozenset([
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "max", "min", "gcd", "lcm", "mod", "deg", "det",
    "arcsin", "arccos", "arctan", "lim", "sqrt", "frac",
])  # fmt: skip
_PLAIN_TOKEN = (
    r"(?:\d(?:[\d.,]*\d)?|(?:" + "|".join(sorted(FUNCTIONS)) + r")(?![A-Za-z])"
    r"|[A-Za-z](?![A-Za-z'’])|[-+*/^=<>()²³·×÷−≤≥≠√π_|!])"
)
_PLAIN_FORMULA = re.compile(rf"(?<![A-Za-z\d\\$'’]){_PLAIN_TOKEN}(?:[ ]?{_PLAIN_TOKEN})+(?![A-Za-z])")
_OPERATOR = re.compile(r"[=^<>×÷≤≥≠²³√]|(?<=[\w)])\s?[+*]\s?(?=[\w(])")

_SPELLINGS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "−": "-", "–": "-", "≤": r"\leq ", "≥": r"\geq ",
    "≠": r"\neq ", "√": r"\sqrt ", "²": "^2", "³": "^3", "π": r"\pi ", "°": r"^\circ ", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "∞": r"\infty ", "*": r"\cdot ", "**": "^",
}  # fmt: skip
_SIGN = re.compile("|".join(re.escape(sign) for sign in sorted(_SPELLINGS, key=len, reverse=True)))
_SAME_COMMAND = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom", r"\tbinom": r"\binom",
    r"\le": r"\leq", r"\leqslant": r"\leq", r"\ge": r"\geq", r"\geqslant": r"\geq", r"\ne": r"\neq", r"\lt": "<",
    r"\gt": ">", r"\times": r"\cdot", r"\dots": r"\ldots", r"\cdots": r"\ldots", r"\dotsc": r"\ldots",
    r"\dotsb": r"\ldots", r"\degree": r"\circ", r"\lbrace": r"\{", r"\rbrace": r"\}", r"\div": "/", r"\colon": ":",
}  # fmt: skip
# What only sets the type: space, size, delimiters that grow, columns, punctuation between formulas.
_NO_MEANING = frozenset([
    r"\left", r"\right", r"\big", r"\Big", r"\bigg", r"\Bigg", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr", r"\biggl",
    r"\biggr", r"\displaystyle", r"\textstyle", r"\limits", r"\nolimits", r"\quad", r"\qquad", r"\,", r"\;", r"\:",
    r"\!", r"\ ", "\\\\", "\\\n", r"\hspace", r"\hline", "&", "~", ",", ";", ".", "?", "{", "}", "$", r"\[", r"\]",
    r"\(", r"\)", r"\$", r"\label", r"\nonumber",
])  # fmt: skip
_ENVIRONMENT = re.compile(r"\\(?P<which>begin|end)\s*\{(?P<name>[a-z]+)\*?\}(?:\s*\{[clr|@ ]*\})?")
_DISPLAY = frozenset(["align", "equation", "gather", "multline", "eqnarray", "alignat", "flalign", "aligned", "split"])
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|\S", re.DOTALL)

GREEK = frozenset([
    r"\alpha", r"\beta", r"\gamma", r"\delta", r"\epsilon", r"\varepsilon", r"\zeta", r"\eta", r"\theta", r"\iota",
    r"\kappa", r"\lambda", r"\mu", r"\nu", r"\xi", r"\rho", r"\sigma", r"\tau", r"\phi", r"\varphi", r"\chi", r"\psi",
    r"\omega", r"\Gamma", r"\Delta", r"\Theta", r"\Lambda", r"\Xi", r"\Sigma", r"\Phi", r"\Psi", r"\Omega", r"\ell",
])  # fmt: skip


@dataclass(frozen=True)
class Formula:
    """A stretch of mathematics: ``text[start:end]``, delimiters included, and its tokens in one spelling."""

    start: int
    end: int
    tokens: tuple[str, ...]


def formulas(text: str) -> list[Formula]:
    """The mathematics of a text, in order. What holds no token, like ``$ $``, is left out."""
    found = []
    for start, end, body in _in_order(text):
        tokens = tokens_of(body)
        if tokens:
            found.append(Formula(start, end, tokens))
    return found


def _in_order(text: str) -> Iterator[tuple[int, int, str]]:
    position = 0
    for start, end, body in _delimited(text):
        yield from _plain_formulas(text, position, start)
        yield start, end, body
        position = end
    yield from _plain_formulas(text, position, len(text))


def _delimited(text: str) -> Iterator[tuple[int, int, str]]:
    position, never_closed = 0, set()
    while opening := _OPENING.search(text, position):
        position = opening.end()
        if opening["other"] is not None:
            continue
        if opening["dollar"]:
            close = _closing_dollar(text, position)
            end = close + 1
        else:
            environment = opening["environment"]
            closing = rf"\end{{{environment}}}" if environment else _DELIMITERS[opening["delimiter"]]
            close = -1 if closing in never_closed else text.find(closing, position)
            end = close + len(closing)
            if close < 0:
                never_closed.add(closing)
        if close >= 0:
            yield opening.start(), end, text[position:close]
            position = end


_AMOUNT = re.compile(r"\.?\d")


def _closing_dollar(text: str, start: int) -> int:
    """Where the inline formula that opens before ``start`` closes; -1 if the dollar sign is one of money."""
    close = text.find("$", start, start + _MAX_INLINE)
    while close > 0 and text[close - 1] == "\\":
        close = text.find("$", close + 1, start + _MAX_INLINE)
    if close <= start:
        return -1
    body = text[start:close]
    amount = bool(_AMOUNT.match(body))
    money = amount and (bool(_AMOUNT.match(text, close + 1)) or body[-1].isspace())
    # Words make it prose, unless they stand in \text{…}.
    bare = _TEXT_COMMAND.sub(" ", _FONT.sub(" ", body))
    prose = [word for word in _PROSE.findall(bare) if word.islower() and word not in FUNCTIONS]
    return -1 if money or "\n\n" in body or (prose and amount) or len(prose) > 2 else close


def _plain_formulas(text: str, start: int, end: int) -> Iterator[tuple[int, int, str]]:
    for run in _PLAIN_FORMULA.finditer(text, start, end):
        if _OPERATOR.search(run[0]) and re.search(r"[\dA-Za-z]", run[0]):
            yield run.start(), run.end(), run[0]


def tokens_of(body: str) -> tuple[str, ...]:
    """Tokens in one spelling, without what only sets the type; prose in it, such as ``\\text{cm}``, is left out."""
    body = _TEXT_COMMAND.sub(" ", body)
    body = _ENVIRONMENT.sub(
        lambda found: " " if found["name"] in _DISPLAY or found["which"] == "end" else f" \\{found['name']} ", body
    )
    body = _FONT.sub(" ", _SIGN.sub(lambda sign: _SPELLINGS[sign[0]], body))
    body = re.sub(r"(?<=\d)(?:\{,\}|,\\!\s*|,)(?=\d{3}(?!\d))", "", body)
    written: list[str] = _TOKEN.findall(body)
    found = [_SAME_COMMAND.get(token, token) for token in written]
    return tuple(token for token in found if token not in _NO_MEANING)


def variables(tokens: tuple[str, ...]) -> list[str]:
    r"""The letters among the tokens, repeats included: Latin letters and Greek ones except ``\pi``."""
    return [token for token in tokens if token in GREEK or (len(token) == 1 and token.isalpha())]
