"""Rephrasings by rule: what each rule does, what it leaves alone, and what holds for every proposal."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growth import assert_near_linear
from ta_grpo import tiny
from ta_grpo.errors import UserError
from ta_grpo.rephrasing.checks import check_rephrasing
from ta_grpo.rephrasing.names import MEN, WOMEN
from ta_grpo.rephrasing.rules import MAX_CHARACTERS, TRANSFORMATIONS, rule_rephrasings
from ta_grpo.rephrasing.sentences import sentences

FERRY = (
    "Helen runs a ferry with 14 seats. Each seat costs $6. On Monday Helen sells every seat on 3 trips. "
    "What is the total amount that Helen earns on Monday?"
)
ROOTS = (
    r"Suppose that $x$ and $y$ are integers with $x^2 - 3y = 10$ and $xy_1 = \text{xy } 8$. Find the value of $x + y$."
)
QUESTIONS = [
    FERRY,
    ROOTS,
    "If 5 pears cost 80 cents, how many cents do 12 pears cost?",
    "A crate weighs 8 kg. A barrel weighs 21 kg. What is the difference between the weights of 4 crates and 3 barrels?",
    r"Compute $\sin 30^\circ + \log_2 8$.",
    "How many prime numbers are there between 20 and 50?",
    r"What is the area of the square? [asy] draw((0,0)--(2,0)--(2,2)--(0,2)--cycle); [/asy]",
    r"Which is largest? (A) $2^5$ (B) $5^2$ (C) $30$",
    "Mr. Carter has 12 cows, e.g. for milk. He buys 3 more. How many cows does he have now?",
]


def texts(question, transformation, answer="", count=20, seed=0):
    return [proposal.text for proposal in rule_rephrasings(question, count, answer, [transformation], seed)]


# ---- What holds for all ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_every_proposal_passes_the_checks_with_its_siblings(question, count):
    proposals = rule_rephrasings(question, count, "504")
    assert len(proposals) <= count
    for index, proposal in enumerate(proposals):
        siblings = [other.text for other in proposals if other is not proposal]
        assert check_rephrasing(question, proposal.text, "504", siblings) == []
        assert proposal.transformation in TRANSFORMATIONS, index


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_seed_gives_the_same_proposals(question):
    assert rule_rephrasings(question, 7, seed=3) == rule_rephrasings(question, 7, seed=3)


def test_another_seed_gives_others():
    assert rule_rephrasings(FERRY, 7, seed=1) != rule_rephrasings(FERRY, 7, seed=2)


def test_the_transformations_take_turns():
    used = Counter(proposal.transformation for proposal in rule_rephrasings(FERRY, 4))
    assert set(used) == {"wording", "format", "order", "setting"}


def test_the_questions_of_the_embedded_set_are_rephrased():
    questions = tiny.questions("test")[:60]
    assert all(rule_rephrasings(question.question, 2, question.answer) for question in questions)


def test_unknown_transformations_and_negative_counts_are_refused():
    with pytest.raises(UserError, match=r"'word'.*wording"):
        rule_rephrasings(FERRY, 3, transformations=["word"])
    with pytest.raises(UserError, match="at least 0"):
        rule_rephrasings(FERRY, -1)


@pytest.mark.parametrize("text", ["", " ", "\n", "?", ".", "$", "$$", r"\[", "A.", "x" * (MAX_CHARACTERS + 1)])
def test_what_is_no_question_has_no_rephrasing_that_breaks(text):
    for proposal in rule_rephrasings(text, 3):
        assert check_rephrasing(text, proposal.text, "") == []


@given(st.text(alphabet=st.sampled_from("Aax1. ?$\\{}[](),\nÄ\x00"), max_size=120))
def test_any_text_is_safe(text):
    for proposal in rule_rephrasings(text, 3, "1"):
        assert check_rephrasing(text, proposal.text, "1") == []


@pytest.mark.parametrize(
    "piece", ["$", ". A", "If a, what is ", "How many ", "$x$ ", "Tom ", "? ", "What is the value of a ", "["]
)
def test_hostile_text_does_not_take_quadratic_time(piece):
    assert_near_linear(lambda size: rule_rephrasings(piece * (size // len(piece)), 7, "9"), MAX_CHARACTERS)


# ---- Wording --------------------------------------------------------------------------------------------------------


def test_a_question_becomes_a_command_and_back():
    turned = texts("A field is 7 m by 9 m. What is the area of the field?", "wording")
    assert any(re.search(r"\. (?:Find|Determine|Compute|Calculate) the area of the field\.$", text) for text in turned)
    back = texts("A field is 7 m by 9 m. Find the area of the field.", "wording")
    assert any(text.endswith("What is the area of the field?") for text in back)


def test_a_count_becomes_a_command():
    turned = texts("How many prime numbers are there between 20 and 50?", "wording")
    assert any("the number of prime numbers between 20 and 50." in text for text in turned)


def test_a_plural_is_not_asked_for_with_is():
    asked = texts("Tom adds 3 and 4 and 5. Find the product and the sum of the three.", "wording")
    assert not any("What is" in text for text in asked)


def test_more_than_a_count_is_not_turned():
    asked = texts("Ann has 9 figs and Ida has 4 figs. How many more figs are in Ann's bag than in Ida's?", "wording")
    assert not any("number of more" in text for text in asked)


def test_an_abbreviation_ends_no_sentence():
    text = "Mr. Carter drove 5.5 km, i.e. 3.4 miles. How far is Dr. Lee's house? Is $x = 3. Y$ right?"
    assert sentences(text) == [
        "Mr. Carter drove 5.5 km, i.e. 3.4 miles.",
        "How far is Dr. Lee's house?",
        "Is $x = 3. Y$ right?",
    ]
    question = "There were 9 bags. Find the total number of bags that are packed by Mr. Carter in 4 days."
    assert not any("Mr?" in text for text in texts(question, "wording"))


def test_words_in_formulas_stay():
    question = r"Ann bought 3 pens at $\text{2 bought}$ dollars each. How much did the pens she bought cost in total?"
    assert all(r"\text{2 bought}" in text for text in texts(question, "wording"))


# ---- Format and order -----------------------------------------------------------------------------------------------


def test_facts_are_listed_before_the_question():
    listed = texts(FERRY, "format")
    assert any(text.splitlines()[0] in ("Given:", "Facts:", "What is known:") for text in listed)
    bullets = [line[2:] for line in listed[0].splitlines() if line[:2] in ("- ", "* ", "• ")]
    if bullets:
        assert bullets == sentences(FERRY)[:-1]
    assert all(sentence in text for text in listed for sentence in sentences(FERRY))


def test_the_form_of_the_answer_stays_with_the_question():
    question = "A wheel has 9 spokes. What is the angle between two of them? Round to the nearest degree."
    assert all("two of them? Round to the nearest degree." in text for text in texts(question, "format"))


@pytest.mark.parametrize(
    "question",
    [
        "How many cows are there? There are 4 in each of 6 barns.",
        "What is $2 + 2$?",
        "Is 7 prime? Is 9? How many of the two are?",
        r"Take this figure. [asy] draw((0,0)--(1,1)); [/asy] What is its length?",
        "Take one of these. Which is even? (A) 3 (B) 4",
    ],
)
def test_no_format_without_facts_before_one_question(question):
    assert texts(question, "format") == []


def test_the_question_comes_first():
    assert any(text.index("What is the total") < text.index("Helen runs a ferry") for text in texts(FERRY, "order"))


def test_a_condition_moves_behind():
    assert "How many cents do 12 pears cost if 5 pears cost 80 cents?" in texts(QUESTIONS[2], "order")


def test_a_condition_stays_where_the_question_refers_to_it():
    assert texts("If Tom has 5 pears, how many pears does he have after he eats 2?", "order") == []


def test_facts_change_places_only_if_they_refer_to_nothing():
    swapped = texts(QUESTIONS[3], "order")
    assert any(text.startswith("A barrel weighs 21 kg. A crate weighs 8 kg.") for text in swapped)
    linked = "A crate weighs 8 kg. It holds 21 cups. What is the weight of 4 crates with 3 cups each?"
    assert not any(text.startswith("It holds") for text in texts(linked, "order"))
    sharing = "Let $a = 2$. Let $b = a + 3$. What is the value of $b$?"
    assert not any(text.startswith("Let $b") for text in texts(sharing, "order"))


def test_a_question_that_points_back_stays_behind():
    pointing = "A list holds 4, 9 and 16. What is the sum of these numbers?"
    assert not any(text.startswith("What is the sum of these") for text in texts(pointing, "order"))


# ---- People ---------------------------------------------------------------------------------------------------------


def test_people_get_names_of_their_group_everywhere():
    question = "Helen has 4 figs and Oscar has 9. Helen's figs are eaten. How many figs do Helen and Oscar have?"
    renamed = texts(question, "setting")
    assert renamed
    for text in renamed:
        woman, man = re.match(r"(\w+) has 4 figs and (\w+) has 9", text).groups()
        assert woman in WOMEN
        assert man in MEN
        assert text == question.replace("Helen", woman).replace("Oscar", man)


@pytest.mark.parametrize(
    "question",
    [
        "Mr. James has 4 figs, and James eats 2. How many figs does James have?",
        "Helen Carter has 4 figs, and Helen eats 2. How many figs does Helen have?",
        "Lake Victoria and James Bay cover 7 maps. How many maps does James need for them?",
        "How many letters are in James's name, and in the name of James's 3 sons?",
        "Let $J$ be the age of James, and $J + 3 = 9$. How old is James, and how old are his sons, if James is 9?",
        "Tim and Timothy are 9 and 4. How old are Tim and Timothy together with their 2 sons?",
        "Grace has 4 hopes. Will has 9. How many hopes do Grace and Will have?",
        r"James sees this. [asy] label('James', (0,0)); [/asy] How many of the 4 figs does James see?",
        "James and RJ have 4 and 5 nuts, where JR has 7. How many nuts do James, JR and RJ have?",
    ],
)
def test_names_stay_where_they_may_be_more_than_names(question):
    assert texts(question, "setting") == []


def test_a_name_that_is_the_answer_stays():
    question = "Helen has 4 figs and Julia has 9 figs. Who has more figs, Helen or Julia?"
    assert texts(question, "setting", answer="4")
    assert texts(question, "setting", answer=r"\text{Julia}") == []


def test_names_are_in_one_group_only():
    assert not set(WOMEN) & set(MEN)
    assert len(set(WOMEN)) == len(WOMEN)
    assert len(set(MEN)) == len(MEN)


# ---- Variables ------------------------------------------------------------------------------------------------------


def test_variables_are_renamed_in_all_formulas_and_nowhere_else():
    renamed = texts(ROOTS, "variables")
    assert renamed
    for text in renamed:
        x, y = re.search(r"that \$(\w)\$ and \$(\w)\$ are", text).groups()
        assert len({x, y, "x", "y"}) == 4
        expected = (
            rf"Suppose that ${x}$ and ${y}$ are integers with ${x}^2 - 3{y} = 10$ and ${x}{y}_1 = \text{{xy }} 8$. "
            rf"Find the value of ${x} + {y}$."
        )
        assert text == expected


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Solve $x + 3 = k$ for $x$ in terms of $k$.", "k - 3"),
        ("Find the area of triangle $ABC$ with $AB = 3$ and $BC = AC = 5$.", "4"),
        ("Where does the graph of $y = x + 3$ meet the $x$-axis?", "-3"),
        ("What is $e^{i} + e^{-i}$ in terms of cosines?", "1"),
        (r"What is $\int_0^1 x dx + \int_0^2 x dx$?", "1"),
        ("A letter is called x, and $x + x = 8$. What is x?", "4"),
        ("Solve x + 3 = 9 and tell what x + 1 is, where $x$ is real and $x > 2$.", "7"),
        ("A rod is $4m$ long and another one is $7m$ long. How long are both?", "11"),
        ("What is $mod(9, a) + max(a, a)$ if $a = 4$?", "5"),
    ],
)
def test_letters_with_a_meaning_of_their_own_stay(question, answer):
    assert texts(question, "variables", answer) == []
