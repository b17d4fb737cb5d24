r"""One spelling for each notation: the LaTeX, Unicode and Markdown that people and models write, made plain.

Text in, text out; nothing here knows what a number is. All of it takes time linear in the length of the text, or is
given short text only (``verdict.MAX_ANSWER_CHARACTERS``).
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("−–—‒﹣－", "-"),
        **dict.fromkeys("×✕✖", r"\times "),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **dict.fromkeys("÷⁄∕", "/"),
        **dict.fromkeys("’′", "'"),
        "±": r"\pm ",
        "∓": r"\mp ",
        "∞": r"\infty ",
        "≤": r"\leq ",
        "⩽": r"\leq ",
        "≥": r"\geq ",
        "⩾": r"\geq ",
        "≠": r"\neq ",
        "≈": r"\approx ",
        "≃": r"\approx ",
        "°": r"^\circ ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "∖": r"\setminus ",
        "→": r"\to ",
        "⟨": "(",
        "⟩": ")",
        "…": r"\ldots ",
        "ℝ": r"\mathbb{R}",
        "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}",
        "ℚ": r"\mathbb{Q}",
        "ℂ": r"\mathbb{C}",
        "π": r"\pi ",
        "ϖ": r"\pi ",
        "¢": r"\text{ cents}",
    }
)
_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ":
    "theta", "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ":
    "sigma", "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ":
    "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω":
    "Omega",
}  # fmt: skip
_GREEK_SIGNS = str.maketrans({sign: f"\\{name} " for sign, name in _GREEK.items()})
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", "0123456789+-=()")
_RADICAND = r"\s*(?P<radicand>\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\)|\{[^{}]*\})"

_UNIT_LETTERS = "msghlLNJWVACFKTB"

# (pattern, replacement), in this order.
_REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        # Markup that means nothing.
        (r"\\(?:left|right|middle|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it)(?![A-Za-z])", ""),
        (r"\\color\s*\{[^{}]*\}", ""),
        (r"\\textcolor\s*\{[^{}]*\}", ""),
        (r"\\(?:boxed|fbox|ensuremath)(?![A-Za-z])\s*", ""),
        (r"^\s*\*+([^*]+)\*+\s*$", r"\1"),
        (r"^\s*\\\[(.*)\\\]\s*$", r"\1"),
        (r",\\!\s*(?=\d)", ","),
        # A backslash before a backslash is a new row of a matrix.
        (r"(?<!\\)\\(?:!|/)", ""),
        (r"(?<!\\)\\(?:[,;:> ]|quad\b|qquad\b|thinspace\b|enspace\b|hspace\s*\{[^{}]*\})|~", " "),
        (r"\\?\$", ""),
        (r"(?<!\\)\\[()]", " "),
        # One command for each meaning.
        (r"\\(?:text(?:bf|it|rm|sf|tt|normal|sc)|mbox|math(?:rm|bf|it|sf|tt|normal)|operatorname|bm|boldsymbol|mathop)\*?"
         r"\s*(?=\{)", r"\\text"),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\\[dt]binom", r"\\binom"),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\lbrack(?![A-Za-z])", "["),
        (r"\\rbrack(?![A-Za-z])", "]"),
        (r"\\langle(?![A-Za-z])", "("),
        (r"\\rangle(?![A-Za-z])", ")"),
        (r"\\(?:le|leqslant)(?![A-Za-z])|<=|=<", r"\\leq "),
        (r"\\(?:ge|geqslant)(?![A-Za-z])|>=", r"\\geq "),
        (r"\\ne(?![A-Za-z])|!=", r"\\neq "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:simeq|cong|doteq)(?![A-Za-z])", r"\\approx "),
        (r"\\varnothing|\\\{\s*\\\}", r"\\emptyset"),
        (r"\\(?:dots|cdots|ldots|dotsc|dotsb)(?![A-Za-z])|\.\.\.+", r"\\ldots "),
        (r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ", r"^\\circ "),
        (r"\\infin(?![A-Za-z])|(?<![A-Za-z\\])infinity(?![A-Za-z])", r"\\infty "),
        (r"\+/-", r"\\pm "),
        (r"\*\*", "^"),
        (r"\\ast(?![A-Za-z])|\*", r"\\cdot "),
        # In plain text 2^10 and 10^-19 have the whole number as their exponent.
        (r"\^\s*(-?\d{2,}|-\d)(?![.\d])", r"^{\1}"),
        (r"\^\s*\(([^()]*)\)", r"^{\1}"),
        (r"(?<!\\)%|(?<=[\d}])\s*(?:\\text\s*\{\s*(?:percent|per cent|pct)\s*\}|(?:percent|per cent|pct)(?![A-Za-z]))",
         r"\\%"),
        (r"\{\s*,\s*\}", ","),
        # Text that holds a number or one letter is not text, except for a unit after a number (`12\text{ m}`).
        (r"\\text\s*\{\s*([-+]?[\d.,]*\d|\([A-Za-z]\))\s*\}", r"\1 "),
        (r"(?P<number>[\d})]\s*)?\\text\s*\{\s*(?P<letter>[A-Za-z])\s*\}",
         lambda m: m[0] if m["number"] and m["letter"] in _UNIT_LETTERS else f"{m['number'] or ''}{m['letter']} "),
        (r"\\text\s*\{\s*\}", " "),
        (r",?\s*(?:\\text\s*\{\s*,?\s*(and|or)\s*\}|(?<![A-Za-z\\{])(and|or)(?![A-Za-z}]))\s*",
         lambda m: f" \\text{{{m[1] or m[2]}}} "),
        # Names of functions and constants in plain text.
        (r"(?<![A-Za-z\\])sqrt\s*(?=[({])", r"\\sqrt"),
        (r"(?<![A-Za-z\\])pi(?![A-Za-z])", r"\\pi "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\log\s*_\s*(\d+)", r"\\log_{\1}"),
        (r"([-+])\s+(?=\\infty)", r"\1"),
        # 1.6e-19 is a number, not a multiple of Euler's e.
        (r"(?<![\w.])(\d+\.?\d*|\.\d+)[eE]([-+]?\d+)(?![\w.])", r"\1 \\times 10^{\2}"),
    ]
]  # fmt: skip


# Mathematics that somebody put in \text: it begins with a number or holds a sign.
_MATHEMATICS_IN_TEXT = re.compile(r"\\text\s*\{\s*(?P<content>[-+(]{0,2}\d[^{}]*|[^{}]*[=+^<>][^{}]*)\}")


@functools.lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """The text in one spelling."""
    text = _plain_signs(text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _braced_arguments(text)
    text = strip_outer(" ".join(text.split()))
    if in_text := _MATHEMATICS_IN_TEXT.fullmatch(text):
        return normalise(in_text["content"])
    return _without_thousands(text)


def _plain_signs(text: str) -> str:
    """Unicode mathematics as LaTeX; control characters as blanks; what has no width as nothing."""
    text = re.sub("[¼-¾⅐-⅞↉]", _vulgar_fraction, text)
    text = re.sub("[⁰¹²³⁴-⁾ⁿⁱ]+", lambda run: "^{" + run[0].translate(_RAISED) + "}", text)
    text = re.sub("[₀-₎]+", lambda run: "_{" + run[0].translate(_LOWERED) + "}", text)
    text = re.sub("√" + _RADICAND, lambda root: r"\sqrt{" + root["radicand"].strip("(){}") + "}", text)
    text = re.sub("∛" + _RADICAND, lambda root: r"\sqrt[3]{" + root["radicand"].strip("(){}") + "}", text)
    text = text.translate(_SIGNS).translate(_GREEK_SIGNS)
    text = unicodedata.normalize("NFKC", text)
    return " ".join("".join(_visible(character) for character in text).split())


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    return " " if category in ("Cc", "Zs", "Zl", "Zp") else "" if category == "Cf" else character


def _vulgar_fraction(sign: re.Match[str]) -> str:
    numerator, denominator = unicodedata.normalize("NFKC", sign[0]).split("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


_FRACTION_OR_ROOT = re.compile(r"\\(?P<name>frac|binom|sqrt)(?![A-Za-z])\s*(?P<index>\[[^\[\]]*\])?")
_ARGUMENT = re.compile(r"\s*(\\(?!begin|end|text)[A-Za-z]+|[A-Za-z0-9])")


def _braced_arguments(text: str) -> str:
    r"""``\frac12`` as ``\frac{1}{2}``, ``\sqrt 3`` as ``\sqrt{3}``: one token is an argument, as in TeX."""
    result, position = [], 0
    for command in _FRACTION_OR_ROOT.finditer(text):
        if command.start() < position:
            continue
        result += [text[position : command.start()], f"\\{command['name']}", command["index"] or ""]
        position = command.end()
        for _ in range(1 if command["name"] == "sqrt" else 2):
            start = len(text) - len(text[position:].lstrip())
            if text[start : start + 1] == "{":
                end = closing(text, start)
                if end is None:
                    break
                result.append("{" + _braced_arguments(text[start + 1 : end]) + "}")
                position = end + 1
            elif argument := _ARGUMENT.match(text, position):
                if argument[1] in (r"\frac", r"\binom", r"\sqrt"):
                    break
                result.append("{" + argument[1] + "}")
                position = argument.end()
    return "".join(result) + text[position:]


_TOKEN = re.compile(
    r"\\begin\s*\{[^{}]*\}|\\end\s*\{[^{}]*\}|\\text\s*\{\s*(?:and|or)\s*\}|\\[A-Za-z]+|\\.|.", re.DOTALL
)
_OPENING = ("(", "[", "{", r"\{")
_CLOSING = (")", "]", "}", r"\}")


def _depths(text: str, start: int = 0) -> Iterator[tuple[str, int, int]]:
    """(token, where it starts, depth of brackets around it) for each token; a closing bracket is outside."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        if token[0] in _CLOSING or token[0].startswith(r"\end"):
            depth -= 1
        yield token[0], token.start(), depth
        if token[0] in _OPENING or token[0].startswith(r"\begin"):
            depth += 1


def closing(text: str, start: int) -> int | None:
    """Where the bracket that opens at ``start`` is closed: the place of the closing token; None if it is not.

    Any closing bracket closes any opening one, for half-open intervals.
    """
    for _, place, depth in list(_depths(text, start))[1:]:
        if depth == 0:
            return place
        if depth < 0:
            return None
    return None


def split_at(text: str, separators: Sequence[str]) -> list[str]:
    """The parts between separators that lie outside all brackets; at least one part."""
    parts, start = [], 0
    for token, place, depth in _depths(text):
        if depth == 0 and "".join(token.split()) in separators:
            parts.append(text[start:place].strip())
            start = place + len(token)
    return [*parts, text[start:].strip()]


_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")


def _without_thousands(text: str) -> str:
    """``x = 1,080 + 1`` without the comma. Within brackets a comma separates: ``(1,080)`` is a pair."""
    numbers = [(match.start(), match.end()) for match in _THOUSANDS.finditer(text)]
    if not numbers:
        return text
    outside = {place for _, place, depth in _depths(text) if depth == 0}
    for start, end in reversed(numbers):
        if start in outside:
            text = text[:start] + text[start:end].replace(",", "") + text[end:]
    return text


def strip_outer(text: str) -> str:
    """Without braces around all of it, without blanks, and without the full stop of the sentence."""
    while True:
        bare = text.strip().rstrip(".,;:").strip()
        if bare.startswith("{") and closing(bare, 0) == len(bare) - 1:
            bare = bare[1:-1]
        if bare == text:
            return text
        text = bare
