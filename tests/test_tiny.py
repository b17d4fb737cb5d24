"""The embedded world and policy: right answers, separate splits, fixed text, a policy within its stated aims."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from ta_grpo.errors import UserError
from ta_grpo.tiny import POLICY_DIR, SPLITS, load_policy, pretrain, questions, world
from ta_grpo.tiny import card as card_text

NUMBERS = re.compile(r"\d+")
DIGEST = "b0f21d4b144a160d17c36ac3c8a00afc8ea986a50d77a7e863ef8c51dd72af16"
# The answers again, straight from the meaning of each family's numbers.
ANSWERS = {
    "bags": lambda bags, per_bag, loose: bags * per_bag + loose,
    "purse": lambda start, spent, earned: start - spent + earned,
    "share": lambda things, children, lost: Fraction(things, children) - lost,
    "trip": lambda way, hours, speed: way - hours * speed,
    "pair": lambda first, more: 2 * first + more,
    "stall": lambda things, price, cups, cup_price: things * price + cups * cup_price,
}


@pytest.fixture(scope="module")
def by_split():
    return {split: list(world.problems(split)) for split in SPLITS}


@pytest.fixture(scope="module")
def policy():
    return load_policy()


@pytest.fixture(scope="module")
def card():
    return json.loads((POLICY_DIR / "card.json").read_text())


# The world.


@pytest.mark.parametrize("split", SPLITS)
def test_answers_and_solutions_are_right(by_split, split):
    for problem in by_split[split]:
        assert problem.answer == ANSWERS[problem.family](*problem.numbers) > 0
        *steps, last = problem.solution.split("\n")
        assert last == f"\\boxed{{{problem.answer}}}"
        for step in steps:
            left, sign, right, result = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()
            exact = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            assert int(result) == (Fraction(int(left), int(right)) if sign == "/" else exact[sign])
        assert 1 <= len(steps) <= 3


@pytest.mark.parametrize("split", SPLITS)
def test_all_phrasings_of_a_problem_state_its_numbers_and_nothing_else(by_split, split):
    for problem in by_split[split]:
        stated = sorted(map(str, problem.numbers))
        for phrasing in range(len(world.BY_NAME[problem.family].phrasings)):
            assert sorted(NUMBERS.findall(problem.text(phrasing))) == stated


def test_families_have_ten_different_phrasings_in_several_layouts_and_orders():
    assert len(world.FAMILIES) >= 6
    for family in world.FAMILIES:
        assert len(set(family.phrasings)) >= 10
        for layout in ("Given", " | ", "\n- "):
            assert sum(layout in text for text in family.phrasings) >= 1
        assert len({tuple(re.findall(r"\{(\d)\}", text)) for text in family.phrasings}) >= 2


def test_numbers_are_in_one_split_only(by_split):
    numbers = {split: {(p.family, p.numbers) for p in problems} for split, problems in by_split.items()}
    for split, problems in by_split.items():
        assert len(numbers[split]) == len(problems) == world.SIZES[split]
    assert sum(len(tuples) for tuples in numbers.values()) == len(set.union(*numbers.values()))


def test_pretraining_shows_training_numbers_in_phrasings_in_use_only(by_split):
    rng = world.Random("any")
    drawn = [world.draw_problem(rng, family, "train") for family in world.FAMILIES for _ in range(3000)]
    assert {p.phrasing for p in drawn} == set(range(world.IN_USE))
    unseen = {(p.family, p.numbers) for split in SPLITS if split != "train" for p in by_split[split]}
    assert not unseen & {(p.family, p.numbers) for p in drawn}
    for family in world.FAMILIES:
        assert sorted(pretrain.phrasing_order(family)) == list(range(world.IN_USE))
    assert len({tuple(pretrain.phrasing_order(family)) for family in world.FAMILIES}) == len(world.FAMILIES)


def test_held_out_phrasings_are_asked_in_their_split_alone(by_split):
    for split, problems in by_split.items():
        phrasings = {p.phrasing for p in problems}
        assert phrasings == ({8, 9} if split == "test_phrasings" else set(range(8)))


@pytest.mark.parametrize("split", SPLITS)
def test_rephrasings_are_seven_other_phrasings_in_use(by_split, split):
    for problem in by_split[split]:
        in_use = {problem.text(phrasing) for phrasing in range(world.IN_USE)}
        assert len(set(problem.rephrasings)) == len(problem.rephrasings) == 7
        assert set(problem.rephrasings) <= in_use - {problem.question}


def test_ood_has_a_number_or_a_result_above_all_usual_ones(by_split):
    for family in world.FAMILIES:
        usual = [
            (*p.numbers, *p.results)
            for split in SPLITS
            if split != "ood"
            for p in by_split[split]
            if p.family == family.name
        ]
        largest = [max(column) for column in zip(*usual, strict=True)]
        for problem in by_split["ood"]:
            if problem.family == family.name:
                values = (*problem.numbers, *problem.results)
                assert any(value > most for value, most in zip(values, largest, strict=True))


def test_the_text_is_the_same_on_every_machine():
    text = "\n".join(f"{q.id} {q.question} {q.answer} {q.rephrasings}" for split in SPLITS for q in questions(split))
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST


def test_questions_carry_what_training_needs(by_split):
    for split in SPLITS:
        asked = questions(split)
        assert (asked.name, asked.prompt_template) == (f"tiny/{split}", "{question}")
        for index, (question, problem) in enumerate(zip(asked, by_split[split], strict=True)):
            assert question.id == f"tiny/{split}/{index}"
            assert (question.question, question.answer) == (problem.question, str(problem.answer))
            assert question.extra == {"family": problem.family, "phrasing": problem.phrasing}
    assert 1000 <= len(questions()) <= 2000


def test_unknown_split_names_the_splits():
    with pytest.raises(UserError, match=r"'dev'.*train, test, test_phrasings, ood"):
        questions("dev")


def test_questions_need_no_torch():
    code = "import sys, ta_grpo.tiny as t; t.questions('test'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The pretraining text.


def test_sloppy_solutions_are_wrong_somewhere_and_keep_the_form():
    rng = world.Random("sloppy")
    shares = Counter()
    for problem in world.problems("test"):
        text = pretrain.sloppy_solution(problem, world.BY_NAME[problem.family], rng)
        assert re.fullmatch(r"(-?\d+[-+*/]-?\d+=-?\d+\n)+\\boxed\{-?\d+\}", text)
        shares[pretrain.boxed_answer(text) == problem.answer] += 1
    assert shares[False] > 0.9 * shares.total()


def test_boxed_answer_is_the_last_whole_number_in_a_box():
    assert pretrain.boxed_answer(r"2+2=4 \boxed{4} no \boxed{-5}") == -5
    assert pretrain.boxed_answer(r"\boxed{4.5}") is None
    assert pretrain.boxed_answer("4") is None


# The policy.


def test_policy_is_small(policy):
    model, _ = policy
    assert sum(parameter.numel() for parameter in model.parameters()) <= 900_000
    assert sum(file.stat().st_size for file in POLICY_DIR.rglob("*")) <= 4_000_000
    assert str(model.dtype) == "torch.float32"
    assert not model.training


def test_chat_template_gives_one_bos_however_it_is_used(policy):
    _, tokenizer = policy
    user = {"role": "user", "content": "Kim has 12 pens.\nHow many?"}
    for chat in ([user], [{"role": "system", "content": "Be brief."}, user]):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert ids == tokenizer(text).input_ids
        assert ids.count(tokenizer.bos_token_id) == 1
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(ids) == text
        assert text.endswith("<|assistant|>")
        assert user["content"] in text
    assert "Be brief." in text
    answered = tokenizer.apply_chat_template([user, {"role": "assistant", "content": "12"}], tokenize=False)
    assert answered.endswith("12<eos>")


def test_the_folder_loads_by_path_as_any_model_does(policy):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = policy
    by_path = AutoTokenizer.from_pretrained(POLICY_DIR)
    for question in questions("test")[:50]:
        chat = [{"role": "user", "content": question.question}]
        assert by_path.apply_chat_template(chat, tokenize=False) == tokenizer.apply_chat_template(chat, tokenize=False)
        assert by_path(question.question).input_ids == tokenizer(question.question).input_ids
    assert AutoModelForCausalLM.from_pretrained(POLICY_DIR).num_parameters() == model.num_parameters()


def test_digits_are_tokens_and_any_text_survives(policy):
    _, tokenizer = policy
    assert tokenizer.tokenize("407") == ["4", "0", "7"]
    for text in ("½ of 2√3 = ?", "naïve\t\n {x}"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_prompts_and_solutions_are_short(policy):
    _, tokenizer = policy
    for split in SPLITS:
        prompts = pretrain.prompt_ids(tokenizer, [question.question for question in questions(split)])
        assert max(map(len, prompts)) <= 52
    lengths = [len(tokenizer(problem.solution).input_ids) + 1 for problem in world.problems("test")]
    assert sum(lengths) / len(lengths) <= 32
    assert max(lengths) < pretrain.MAX_NEW_TOKENS


def test_policy_answers_in_boxes_and_often_right(policy, card):
    asked = list(world.problems("test"))[:24]
    completions = pretrain.sample(*policy, [problem.question for problem in asked], 8, seed=0)
    boxed = [pretrain.boxed_answer(text) is not None for texts in completions for text in texts]
    assert sum(boxed) / len(boxed) > 0.9
    right = pretrain.correct_samples(asked, completions).mean()
    # About five standard errors of 24 questions: sampling differs between machines.
    assert abs(right - card["splits"]["test"]["pass@1"]) < 0.35
    assert right > 0.1


def test_card_is_within_its_aims_and_tells_what_was_measured(card):
    test = card["splits"]["test"]
    assert test["questions"] == world.SIZES["test"]
    assert test["samples"] == 32
    assert 0.30 <= test["pass@1"] <= 0.60
    assert 0.80 <= test["pass@32"] <= 0.92
    assert 0.15 <= card["median spread"] <= 0.40
    assert test["boxed"] > 0.95
    assert card["training CPU minutes"] <= 15
    assert 0 < card["splits"]["ood"]["pass@1"] < test["pass@1"]
    assert card["parameters"] <= 900_000
    assert (POLICY_DIR / "README.md").read_text() == card_text.model_card(card)


# The making of it.

QUICK = ["--steps", "2", "--eval-questions", "6", "--eval-samples", "2"]


def test_pretraining_runs_again_and_gives_the_same_weights(tmp_path):
    target = tmp_path / "policy"
    assert pretrain.main(["--output-dir", str(target), *QUICK]) == 0
    weights = (target / "model.safetensors").read_bytes()
    (target / "notes.txt").write_text("mine")
    assert pretrain.main(["--output-dir", str(target), *QUICK]) == 0
    assert (target / "model.safetensors").read_bytes() == weights
    assert (target / "notes.txt").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]
    made = {file.name for file in target.iterdir()}
    assert made - {"notes.txt"} == {file.name for file in POLICY_DIR.iterdir()}
    card = json.loads((target / "card.json").read_text())
    assert card["steps"] == 2
    assert card["splits"]["test"]["questions"] == 6
    assert "pass@2" in (target / "README.md").read_text()


def test_pretraining_overwrites_nothing_of_others(tmp_path, capsys):
    (tmp_path / "model.safetensors").write_text("another model")
    assert pretrain.main(["--output-dir", str(tmp_path), *QUICK]) == 2
    assert "another directory" in capsys.readouterr().err.replace("\n", " ")
    assert (tmp_path / "model.safetensors").read_text() == "another model"
