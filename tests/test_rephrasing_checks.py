"""The deterministic checks of rephrasings: each accepts good ones, rejects its own kind of bad ones, and says why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growth import assert_near_linear
from ta_grpo.errors import UserError
from ta_grpo.rephrasing.check_writing import differing_words
from ta_grpo.rephrasing.checks import CHECKS, check_rephrasing
from ta_grpo.rephrasing.formulas import formulas, tokens_of
from ta_grpo.rephrasing.quantities import mentions
from ta_grpo.rephrasing.records import Rejection
from ta_grpo.rephrasing.texts import normalised_words

MILL = (
    "A mill grinds 40 sacks of rye in 5 hours. It runs 9 hours on each of 6 days and stands still on Sunday. "
    "How many sacks of rye does it grind in such a week?"
)
MILL_ANSWER = "432"
GOOD_MILL = (
    "On six days of the week a mill works for nine hours each, and it rests on Sunday. Given that 40 sacks of rye take "
    "it 5 hours, what number of sacks does it grind in a week?"
)
CURVE = (
    r"Let $a$ and $b$ be real numbers with $a^2 + 3ab = 28$ and $\frac{a}{b} \le \sqrt{5}$. "
    r"Find the largest value of $a + b$. Express your answer as a common fraction."
)
GOOD_CURVE = (
    r"Two real numbers $a$ and $b$ satisfy $a^2+3ab=28$. It is also known that $\dfrac{a}{b}\leq\sqrt{5}$. As a common "
    r"fraction, what is the largest possible value of $a+b$?"
)
CHOICE = (
    "Which of these numbers leaves the smallest remainder when it is divided by 7? (A) 15 (B) 23 (C) 31 (D) 40 (E) 48"
)
GOOD_CHOICE = (
    "Divide each number below by 7 and look at the remainder. For which one is it the smallest?\n"
    "(A) 15 (B) 23 (C) 31 (D) 40 (E) 48"
)
FIGURE = "[asy]\ndraw((0,0)--(4,0)--(4,3)--cycle);\n[/asy]"
TRIANGLE = f"The legs of the right triangle in the figure are 4 and 3 long. How long is its hypotenuse?\n{FIGURE}"
GOOD_TRIANGLE = f"In the figure you see a right triangle with legs of 4 and 3. Find the hypotenuse's length.\n{FIGURE}"


def names(original, rephrasing, answer="", siblings=()):
    return {rejection.check for rejection in check_rephrasing(original, rephrasing, answer, siblings)}


@pytest.mark.parametrize(
    ("original", "rephrasing", "answer"),
    [
        (MILL, GOOD_MILL, MILL_ANSWER),
        (CURVE, GOOD_CURVE, r"\frac{22}{3}"),
        (CURVE, GOOD_CURVE.replace("a^2+3ab", "u^2+3uv").replace("{a}{b}", "{u}{v}").replace("$a", "$u")
         .replace("$b$", "$v$").replace("u+b", "u+v"), r"\frac{22}{3}"),
        (CHOICE, GOOD_CHOICE, "A"),
        (TRIANGLE, GOOD_TRIANGLE, "5"),
        ("Tea and milk are mixed in the ratio of 7:13. Of 120 cups of the drink, how many are tea?",
         "A drink holds tea and milk in a proportion of 7 to 13. What number of its 120 cups is tea?", "42"),
        ("A bead costs $.05 and a string $2. What do 40 beads and a string cost?",
         "Find the price of one string for $2 together with 40 beads at 5 cents each.", "4"),
        ("A class of 15 pupils goes to the zoo and pays $15 a pupil. How much does it pay?",
         "There are 15 pupils in a class, and a visit to the zoo is 15 dollars for each. What is the sum?", "225"),
        ("Mrs. Low buys 3 lamps for $20 each and 2 chairs for $45 each. How much does she pay?",
         "In a shop, 3 lamps are $20 each and 2 chairs $45 each. Can you compute the sum that Mrs. Low owes for them?",
         "150"),
        ("Half of 1,200 jars are blue, and a dozen of those are cracked. How many blue jars are whole?",
         "There are 1200 jars. 1/2 of them are blue; 12 of the blue ones have a crack. Find the number of blue jars "
         "without one.", "588"),
        ("A 3-hour tour costs $20. A lake tour takes half an hour more and costs 10% more. What does it cost?",
         "For a tour of three hours one pays 20 dollars. The lake tour lasts 30 minutes longer, and its price is ten "
         "percent higher. How much is it?", "22"),
        ("Ole buys 3 cups for $7, 3 plates for $7 and a jug. He pays $50. What does the jug cost?",
         "Three cups and three plates at $7 each, and a jug: for all this Ole pays $50. Find the price of the jug.",
         "8"),
        ("If $x = 3$, what is the value of $x^2 - 2x + 7$?",
         "Find the value of $x^2 - 2x + 7$ given that x is 3.", "10"),
        ("An angle measures $40^\\circ$ and another one twice as much. What is their sum in degrees?",
         "There are two angles, one of 40 degrees and one that is double that size. How many degrees do they have in "
         "all?", "120"),
    ],
)  # fmt: skip
def test_good_rephrasings_are_accepted(original, rephrasing, answer):
    assert check_rephrasing(original, rephrasing, answer) == []


BAD = {
    "numbers": [
        (MILL, GOOD_MILL.replace("40", "45"), "'?40'?"),
        (MILL, GOOD_MILL.replace("nine hours", "some hours"), "9"),
        (MILL, GOOD_MILL.replace("a mill", "a mill with 8 wheels"), "8"),
        (MILL, GOOD_MILL.replace("On six days", "On seven days"), "seven"),
        ("Half of 80 eggs are white. How many are white?",
         "Of 80 eggs some are white. How many are the white ones?", "Half"),
        ("A sale takes 20% off a price of 50. What is the new price?",
         "In a sale a price of 50 falls by an amount of 20. Find what it is then.", "percent"),
        ("Ana has 4 red and 4 blue pens. How many pens has she?",
         "Ana owns 4 red pens and blue pens. Count her pens.", "1 times"),
        ("Each box holds 6 pears, and 6 boxes stand on the cart. How many pears stand there?",
         "Several boxes stand on the cart, and each of them holds 6 pears. How many pears is that?", "6 1 times"),
        ("A class of 15 pupils goes to the zoo and pays $15 a pupil. How much does it pay?",
         "In a class, each pupil pays $15 for a visit to the zoo. What is the sum of it?", "money"),
    ],
    "formulas": [
        (CURVE, GOOD_CURVE.replace("+3ab", "-3ab"), "formula"),
        (CURVE, GOOD_CURVE.replace(r"\leq", r"\geq"), "formula"),
        (CURVE, GOOD_CURVE.replace(r"\dfrac{a}{b}", r"\dfrac{b}{a}"), "formula"),
        (CURVE, GOOD_CURVE.replace(r"\sqrt{5}", "5"), "formula"),
        ("What is $f(3)$ if $f(x) = x^2 + 4$?",
         "For $f(x) = x^2 + 4$ and $g(x) = f(x) + x^3 - 1$, find $f(3)$.", "not in"),
    ],
    "variables": [
        ("The numbers $p$ and $q$ satisfy $p + q = 9$ and $pq = 14$. Find the larger one.",
         "We know $r + r = 9$ and $rr = 14$ of some numbers. Determine the larger one.", "variable"),
        ("Compute $2^n + 1$ for $n = 6$.", "What does one get for $2^n + 1$ with $n = 6$ and $m$?", "m"),
        ("Find $z + i$ if $z = 2$.", "Given $z = 2$, determine what $z + k$ is.", "constant"),
    ],
    "leak": [
        (MILL, GOOD_MILL + " The answer is 432.", "answer"),
        (MILL, GOOD_MILL.replace("in a week", "in a week, namely 432"), "432"),
        (MILL, GOOD_MILL + r" \boxed{}", "boxed"),
        ("On which day does the fair end if it begins on Monday and lasts 5 days?",
         "The fair begins on Monday and lasts 5 days, so its end is on Friday. On which day is it?", "Friday"),
        ("What is $1 - \\frac{x}{3}$ if $x = 1$?",
         "For $x = 1$, find $1 - \\frac{x}{3}$, which equals $\\frac{2}{3}$.", "frac"),
    ],
    "solution": [
        (MILL,
         "Step 1: the mill grinds 40 sacks in 5 hours. Step 2: take 9 hours and 6 days. How many sacks?", "steps"),
        (MILL, GOOD_MILL + " 40 / 5 = 8.", "sum"),
        (MILL, GOOD_MILL + "\nSolution: take the 40 sacks.", "heading"),
        (MILL, GOOD_MILL + " Therefore, the mill grinds many sacks.", "conclusion"),
        (MILL, GOOD_MILL + " First we multiply the hours.", "working"),
    ],
    "copy": [
        (MILL, MILL, "copy"),
        (MILL, MILL.upper(), "copy"),
        (MILL, "  " + MILL.replace(" ", "  ").replace(".", " ;"), "copy"),
        (MILL, MILL.replace("How many sacks", "How many big sacks"), "nearly"),
        (MILL, MILL.replace("grinds", "mills", 1), "nearly"),
    ],
    "length": [
        (MILL, "40 sacks in 5 hours, 9 hours, 6 days: how many?", "characters"),
        (MILL, GOOD_MILL + " It is a fine old mill by the river." * 20, "characters"),
    ],
    "language": [
        (MILL, "Eine Mühle mahlt 40 Säcke Roggen in 5 Stunden. Sie läuft an 6 Tagen je 9 Stunden und steht am Sonntag. "
         "Wie viele Säcke mahlt sie in der Woche?", "German"),
        (MILL, "一座磨坊5小时磨40袋黑麦。每周有6天每天工作9小时，星期天休息。它一周磨多少袋黑麦？", "letters"),
        (MILL, GOOD_MILL.replace("a mill", "мельница (a mill)"), "Cyrillic"),
    ],
    "figures": [
        (TRIANGLE, GOOD_TRIANGLE.replace("(4,3)", "(3,3)"), "figure"),
        (TRIANGLE, GOOD_TRIANGLE.replace(FIGURE, ""), "figure"),
        (TRIANGLE, GOOD_TRIANGLE.replace("[/asy]", ""), "figure"),
    ],
    "options": [
        (CHOICE, GOOD_CHOICE.replace("(B) 23 (C) 31", "(B) 31 (C) 23"), "option B"),
        (CHOICE, GOOD_CHOICE.replace("(E) 48", "48"), "options"),
    ],
    "characters": [
        (MILL, GOOD_MILL.replace("a mill", "a \frac mill"), "JSON"),
        (MILL, GOOD_MILL.replace("a mill", "a mill\x00"), "x00"),
        (MILL, GOOD_MILL.replace("a mill", "a \times mill"), "JSON"),
        (MILL, GOOD_MILL.replace("a mill", "a mill \ud800"), "ud800"),
    ],
    "truncation": [
        (MILL, GOOD_MILL[:-20], "breaks off"),
        (CURVE, GOOD_CURVE.replace(r"\sqrt{5}", r"\sqrt{5"), "partner"),
        (CURVE, GOOD_CURVE.replace("$a+b$", "$a+b"), "dollar"),
        (MILL, "", "empty"),
        (MILL, "?!?", "no question"),
    ],
    "reasoning": [
        (MILL, "Sure! " + GOOD_MILL, "sure"),
        (MILL, "<think>I restate it.</think> " + GOOD_MILL, "think"),
        (MILL, "Rephrased question: " + GOOD_MILL, "rephras"),
        (MILL,
         "I'm sorry, but I can't help with that. Please ask me how many sacks of rye there are in a mill.", "refuses"),
        (MILL, GOOD_MILL + " Solve the given problem.", "task"),
        (MILL, f"```\n{GOOD_MILL}\n```", "markup"),
    ],
    "question": [
        (MILL,
         "On six days of the week a mill works for nine hours each, and it rests on Sunday. 40 sacks of rye "
         "take it 5 hours.", "asks nothing"),
        (CURVE, GOOD_CURVE.replace("As a common fraction, what", "What"), "fraction"),
        ("A pen costs 2 dollars less than a book at 5 dollars. In cents, what does the pen cost?",
         "A book costs 5 dollars, and a pen 2 dollars less. What is the price of the pen?", "cents"),
        ("What is the smallest of three even numbers in a row that add up to 36?",
         "Three even numbers in a row have the sum 36. Which one is the largest?", "smallest"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("check", "case"), [(check, case) for check, cases in BAD.items() for case in cases])
def test_a_bad_rephrasing_is_rejected_by_its_check_with_a_reason(check, case):
    original, rephrasing, part = case
    answers = {MILL: MILL_ANSWER, CURVE: r"\frac{22}{3}", CHOICE: "A", TRIANGLE: "5"}
    answer = answers.get(original, {"O": "Friday", "W": r"\frac{2}{3}"}.get(original[0], ""))
    reasons = [
        rejection.reason for rejection in check_rephrasing(original, rephrasing, answer) if rejection.check == check
    ]
    assert reasons
    assert part.strip("'?").casefold() in reasons[0].casefold()


def test_every_check_has_cases():
    assert set(BAD) == set(CHECKS)


def test_a_sibling_is_not_repeated():
    assert check_rephrasing(MILL, GOOD_MILL, MILL_ANSWER) == []
    assert names(MILL, GOOD_MILL, MILL_ANSWER, [GOOD_MILL.lower()]) == {"copy"}
    assert "rephrasing 2" in check_rephrasing(MILL, GOOD_MILL, MILL_ANSWER, [CURVE, GOOD_MILL])[0].reason


def test_an_answer_that_the_question_names_is_no_leak():
    original = "A bag holds 12 nuts and 5 figs, and 7 nuts are eaten. How many nuts are left in the bag?"
    rephrasing = "Somebody eats 7 nuts out of a bag with 12 nuts and 5 figs. Find the number of nuts that remain."
    assert check_rephrasing(original, rephrasing, "5") == []
    assert "leak" in names(original, rephrasing + " The answer is 5.", "5")


def test_checks_can_be_skipped_by_name_only():
    assert check_rephrasing(MILL, MILL, MILL_ANSWER, skip=["copy"]) == []
    with pytest.raises(UserError, match=r"copies.*numbers"):
        check_rephrasing(MILL, MILL, MILL_ANSWER, skip=["copies"])


def test_a_rejection_names_the_figures():
    found = check_rephrasing(MILL, GOOD_MILL.replace("40", "45"), MILL_ANSWER)
    assert found == [Rejection("numbers", "40 of the original not there; 45 not in the original")]


# ---- Reading numbers and formulas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("two hundred and fifty-three", [253]),
        ("1.5 million", [1_500_000]),
        ("1,000 and 1{,}000 and 10000", [1000, 1000, 10_000]),
        ("twelve, 12th and a dozen", [12, 12, 12]),
        (r"\frac{3}{4} \frac12 1/8 ½ three-quarters", [0.75, 0.5, 0.125, 0.5, 0.75]),
        ("twice, thrice and two times", [2, 3, 2]),
        ("at 1:00 or 2:30", [1, 2.5]),
        ("in the ratio of 7:13, and 12:15 by the clock", [7, 13, 12.25]),
        ("x_1 + 2y", [1, 2]),
        ("one hundred", [100]),
        ("a third of it", [1 / 3]),
        (r"2 1/2, two and a half, 2\frac{1}{2}, 2.5 and 3½", [2.5, 2.5, 2.5, 2.5, 3.5]),
    ],
)
def test_numbers_are_read_by_value(text, values):
    found = [float(mention.values[0]) for mention in mentions(text) if not mention.loose]
    assert found == pytest.approx(values)


UNITS = "zero one two three four five six seven eight nine".split()  # noqa: SIM905
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905


def in_words(value: int) -> str:
    if value >= 1000:
        rest = value % 1000
        return f"{in_words(value // 1000)} thousand" + (f" {in_words(rest)}" if rest else "")
    if value >= 100:
        rest = value % 100
        return f"{UNITS[value // 100]} hundred" + (f" and {in_words(rest)}" if rest else "")
    if value >= 20:
        return TENS[value // 10 - 2] + (f"-{UNITS[value % 10]}" if value % 10 else "")
    teens = [
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ]
    return UNITS[value] if value < 10 else teens[value - 10]


@given(st.lists(st.integers(2, 99_999), min_size=1, max_size=6))
def test_a_number_is_the_same_in_any_spelling(values):
    spellings = [
        "; ".join(str(value) for value in values),
        "; ".join(f"{value:,}" for value in values),
        "; ".join(in_words(value) for value in values),
    ]
    read = [[mention.values[0] for mention in mentions(text)] for text in spellings]
    assert read[0] == read[1] == read[2] == values


@given(st.lists(st.integers(2, 9_999), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_respelled_and_reordered_numbers_pass_and_a_changed_one_does_not(values, rng):
    things = ["jars", "tubs", "cans", "cups", "bags"]
    original = (
        "In a shop are "
        + ", ".join(f"{v} {t}" for v, t in zip(values, things, strict=False))
        + ". How many things is that?"
    )
    pairs = list(zip(values, things, strict=False))
    rng.shuffle(pairs)
    respelled = (
        "Somebody counts in a store: "
        + "; ".join(f"{t}, {in_words(v)}" for v, t in pairs)
        + ". Find the number of things."
    )
    assert check_rephrasing(original, respelled, "", skip=["copy"]) == []
    wrong = respelled.replace(in_words(pairs[0][0]), "fifty thousand", 1)
    assert "numbers" in names(original, wrong)


@given(st.text(max_size=300))
def test_normalising_twice_changes_nothing(text):
    once = normalised_words(text)
    assert normalised_words(" ".join(once)) == once


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_differing_words_is_a_distance(one, other):
    assert differing_words(one, other) == differing_words(other, one)
    assert (differing_words(one, other) == 0) == (one == other)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It costs $2 and $3, so $x + 1$ of $43$ dollars", ["x + 1", "43"]),
        (r"\[a = 1\] and \(b\) and $$c^2$$", ["a = 1", "b", "c ^ 2"]),
        (r"\begin{align*} a &= 1, \\ b &\le 2 \end{align*}", [r"a = 1 b \leq 2"]),
        ("Solve x^2 + 3x = 5 for x.", ["x ^ 2 + 3 x = 5"]),
        ("A man - a tall one - and I (or he) walk 5 km/day.", []),
        (r"A price of \$5 and $ 7 is not closed", []),
        (r"$\left(\tfrac{1}{2}\,x\right)$", [r"( \frac 1 2 x )"]),
    ],
)
def test_formulas_are_found(text, found):
    assert [" ".join(formula.tokens) for formula in formulas(text)] == found


def test_spelling_of_a_formula_does_not_count():
    assert tokens_of(r"\dfrac{a}{b}\le 1{,}000 \times \mathrm{c}") == tokens_of(r"\frac{a}{b} \leqslant 1000\cdot c")


# ---- Hostile text ---------------------------------------------------------------------------------------------------

HOSTILE = ["$", "$x ", "\\[ ", "{", "\\frac{", "\\begin{align}", "9", "1,000,", "one hundred and ", "twenty ", ". A",
           "[asy]", "(", "(A) ", "\x00\x0c", "1+", "![", "_", "the ", "\n", "<", "\\text{", "So, ", "let's we can ",
           "how many ", "\\", "the final ", "two-", "\ud800", "1/", ":1", "If a, what is "]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_text_is_safe_and_does_not_take_quadratic_time(piece):
    def check(size: int) -> None:
        text = piece * (size // 10 // len(piece))
        assert check_rephrasing(text, text + " x9", "9")
        check_rephrasing(MILL, piece * (size // len(piece)), MILL_ANSWER)

    assert_near_linear(check, 200_000)


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=20))
def test_any_text_is_answered_alike_each_time(original, rephrasing, answer):
    assert check_rephrasing(original, rephrasing, answer) == check_rephrasing(original, rephrasing, answer)
