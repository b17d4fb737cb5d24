import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import ta_grpo.evaluation
import tiny_models
from ta_grpo.errors import UserError
from ta_grpo.evaluation import (
    compare,
    comparison_table,
    evaluate,
    evaluate_sampler,
    load_evaluation,
    mean_of,
    render_table,
    rescore,
)
from ta_grpo.evaluation.tally import majority_vote
from ta_grpo.questions import Question, QuestionSet
from ta_grpo.rundir import read_jsonl
from ta_grpo.sampling import Completion, SamplingSettings
from ta_grpo.statistics import PairedComparison, bootstrap_interval, pass_at_k

QUESTIONS = QuestionSet(
    [Question("a", "1+1?", "2"), Question("b", "3+4?", "7", rephrasings=("seven?",)), Question("c", "8+9?", "17")],
    name="sums",
    dropped={"no answer": 2},
    prompt_template="{question}",
)
SETTINGS = SamplingSettings(num_samples=4, max_new_tokens=6, batch_size=5)
RIGHT, WRONG, NONE = "\\boxed{%s}", "\\boxed{-1}", "I do not know"


class StoppedError(Exception):
    pass


class FakeSampler:
    """Gives the completions of a queue, one after the other; an empty queue is an error."""

    def __init__(self, completions, settings=SETTINGS):
        self.queue = list(completions)
        self.settings = settings
        self.prompts = {}

    def prepare(self, prompts):
        self.prompts.update(prompts)
        return [[1, 2, 3] for _ in prompts]

    def complete(self, prompt_ids, seed, arrived):
        return [self.queue.pop(0) for _ in prompt_ids]

    def describe(self):
        return {"model": "queue"}


def drawn(*texts, finished=True):
    return [Completion(text, tokens=len(text), finished=finished) for text in texts]


# In the order of the plan: all prompts are of one length, so by question, then by sample.
QUEUE = [
    *drawn(RIGHT % 2, RIGHT % 2, WRONG, "the answer is \\boxed{2}"),
    *drawn(NONE, WRONG, WRONG + ".", RIGHT % 7),
    *drawn(NONE, NONE),
    *drawn("cut \\frac", "cut \\boxed{1", finished=False),
]


def run(tmp_path, queue=QUEUE, questions=QUESTIONS, **kwargs):
    return evaluate_sampler(FakeSampler(queue, kwargs.pop("settings", SETTINGS)), questions, tmp_path, **kwargs)


def test_figures_of_chosen_completions(tmp_path):
    evaluation = run(tmp_path)
    assert evaluation.correct == {"a": 3, "b": 1, "c": 0}
    assert evaluation.num_questions == 3
    assert list(evaluation.pass_at_k) == [1, 2, 4]
    for k, interval in evaluation.pass_at_k.items():
        assert interval == bootstrap_interval([pass_at_k(4, c, k) for c in (3, 1, 0)])
    assert evaluation.pass_at_k[1].mean == pytest.approx(1 / 3)
    assert evaluation.pass_at_k[4].mean == pytest.approx(2 / 3)
    assert evaluation.outcomes["right"] == pytest.approx(4 / 12)
    assert evaluation.outcomes["wrong"] + evaluation.outcomes["no_answer"] == pytest.approx(8 / 12)
    assert sum(evaluation.outcomes.values()) == pytest.approx(1)
    assert evaluation.truncated_share == pytest.approx(2 / 12)
    assert evaluation.duplicate_share == pytest.approx(2 / 12)
    assert evaluation.mean_tokens == pytest.approx(sum(completion.tokens for completion in QUEUE) / 12)
    assert (evaluation.name, evaluation.num_samples, evaluation.dropped) == ("sums", 4, {"no answer": 2})
    assert evaluation.settings["model"] == "queue"
    assert evaluation.settings["prompt_template"] == "{question}"


def test_summary_and_verdicts_are_on_disk(tmp_path):
    evaluation = run(tmp_path)
    assert load_evaluation(tmp_path) == evaluation
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert summary["num_questions"] == 3
    assert summary["correct"] == {"a": 3, "b": 1, "c": 0}
    verdicts = read_jsonl(tmp_path / "verdicts.jsonl")
    assert [(line["id"], line["sample"]) for line in verdicts] == [(i, n) for i in "abc" for n in range(4)]
    assert [line["outcome"] for line in verdicts[:5]] == ["right", "right", "wrong", "right", "no_answer"]
    assert [line["extracted"] for line in verdicts[:5]] == ["2", "2", "-1", "2", None]


def test_only_the_original_question_is_asked_as_the_template_says(tmp_path):
    sampler = FakeSampler(QUEUE)
    evaluate_sampler(sampler, QUESTIONS, tmp_path, template="Q: {question}", conversational=False)
    assert sampler.prompts == {"a": "Q: 1+1?", "b": "Q: 3+4?", "c": "Q: 8+9?"}
    sampler = FakeSampler(QUEUE)
    evaluate_sampler(sampler, QUESTIONS, tmp_path / "chat")
    assert sampler.prompts["b"] == [{"role": "user", "content": "3+4?"}]


def test_k_above_n_is_refused_before_anything_is_drawn(tmp_path):
    with pytest.raises(UserError, match="pass@8 cannot be estimated from 4 samples"):
        run(tmp_path, ks=[1, 8])
    for ks in ([0], []):
        with pytest.raises(UserError, match=r"k of 1 or more|at least one k"):
            run(tmp_path, ks=ks)
    assert not list(tmp_path.iterdir())
    assert list(run(tmp_path, ks=[3, 1]).pass_at_k) == [1, 3]


def test_questions_that_cannot_be_checked_are_left_out_and_named(tmp_path, caplog):
    bad = Question("bad", "Which one?", "$t(0,4]$")
    with caplog.at_level(logging.WARNING):
        evaluation = run(tmp_path, questions=QuestionSet([bad, *QUESTIONS], prompt_template="{question}"))
    assert evaluation.unusable_gold == ("bad",)
    assert "bad" not in evaluation.correct
    assert evaluation.num_questions == 3
    assert "1 of 4 questions are left out" in caplog.text
    assert "bad ('$t(0,4]$')" in caplog.text
    assert load_evaluation(tmp_path).unusable_gold == ("bad",)
    with pytest.raises(UserError, match="none of its 1 questions has an answer that can be checked"):
        run(tmp_path / "none", questions=QuestionSet([bad]))


def test_one_question_has_no_interval_and_the_summary_stays_json(tmp_path):
    run(tmp_path, questions=QUESTIONS[:1])
    text = (tmp_path / "summary.json").read_text("utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    loaded = load_evaluation(tmp_path)
    assert math.isnan(loaded.pass_at_k[1].low)
    assert loaded.pass_at_k[1].mean == 0.75


# Going on after an interruption


def real(tmp_path, on_progress=None, **changes):
    settings = SamplingSettings(**{"num_samples": 6, "max_new_tokens": 5, "batch_size": 4} | changes)
    model, tokenizer = tiny_models.model(), tiny_models.tokenizer()
    evaluate(model, tokenizer, QUESTIONS, tmp_path, settings=settings, on_progress=on_progress)
    return {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_an_interrupted_evaluation_ends_as_an_unbroken_one(tmp_path):
    calls = []
    unbroken = real(tmp_path / "unbroken", lambda *call: calls.append(call))
    assert calls == [("sampling", n, 18) for n in (0, 4, 8, 12, 16, 18)] + [("verifying", n, 18) for n in (0, 18)]
    assert unbroken.keys() == {"samples.jsonl", "samples.meta.json", "verdicts.jsonl", "summary.json"}
    for number, call in enumerate(calls):

        def interrupt(*now, at=call):
            if now == at:
                raise StoppedError

        path = tmp_path / str(number)
        with pytest.raises(StoppedError):
            real(path, interrupt)
        assert not (path / "summary.json").exists()
        assert real(path) == unbroken


def test_a_killed_evaluation_ends_as_an_unbroken_one(tmp_path):
    unbroken = real(tmp_path / "unbroken", num_samples=100)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_evaluation; "
        "test_evaluation.real(Path(sys.argv[1]), num_samples=100)"
    )
    path = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", code, str(path), str(Path(__file__).parent)])
    samples = path / "samples.jsonl"
    while not samples.exists() or samples.stat().st_size < 1000:
        assert process.poll() is None
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert 1000 <= samples.stat().st_size < len(unbroken["samples.jsonl"])
    assert real(path, num_samples=100) == unbroken


def test_a_finished_evaluation_can_be_asked_for_other_ks_without_sampling(tmp_path):
    run(tmp_path)
    assert list(run(tmp_path, queue=[], ks=[3]).pass_at_k) == [3]
    with pytest.raises(UserError, match="another temperature"):
        run(tmp_path, settings=SamplingSettings(4, 6, temperature=0.5, batch_size=5))


def test_a_corrected_answer_is_judged_again(tmp_path):
    assert run(tmp_path).correct == {"a": 3, "b": 1, "c": 0}
    corrected = QuestionSet([QUESTIONS[0], Question("b", "3+4?", "-1"), QUESTIONS[2]], prompt_template="{question}")
    assert run(tmp_path, queue=[], questions=corrected).correct == {"a": 3, "b": 2, "c": 0}
    assert len(read_jsonl(tmp_path / "verdicts.jsonl")) == 12


def test_a_torn_verdict_is_judged_again(tmp_path):
    run(tmp_path)
    path = tmp_path / "verdicts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    run(tmp_path, queue=[])
    assert path.read_bytes() == whole


def test_a_summary_that_is_not_there_or_damaged(tmp_path):
    with pytest.raises(UserError, match="no evaluation was run there"):
        load_evaluation(tmp_path)
    run(tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        load_evaluation(tmp_path)
    for content in ("{", "[]", '{"name": "x"}', '{"unusable_gold": [], "pass_at_k": {}}'):
        (tmp_path / "summary.json").write_text(content)
        with pytest.raises(UserError, match="damaged"):
            load_evaluation(tmp_path)


# Votes


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ({"2": 3, "5": 1}, 1.0),
        ({"5": 3, "2": 1}, 0.0),
        ({"2": 2, "5": 2}, 0.5),
        ({"5": 1, "2": 1, "7": 1}, 1 / 3),
        ({None: 5, "2": 1}, 1.0),
        ({None: 4}, 0.0),
        ({"2": 2, " 2 ": 2, "5": 3}, 1.0),
    ],
)
def test_the_most_frequent_answer_counts_and_equally_frequent_ones_share(answers, right):
    votes = [
        (answer, "no_answer" if answer is None else "right" if answer.strip() == "2" else "wrong")
        for answer, count in answers.items()
        for _ in range(count)
    ]
    assert majority_vote(votes) == pytest.approx(right)
    assert majority_vote(votes[::-1]) == pytest.approx(right)


def test_votes_of_an_evaluation(tmp_path):
    evaluation = run(tmp_path)
    assert evaluation.vote_right == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert evaluation.majority_vote == bootstrap_interval([1.0, 0.0, 0.0])
    assert evaluation.unanswered_share == evaluation.outcomes["no_answer"]


def test_mean_over_sets_weighs_them_equally(tmp_path):
    a, b = run(tmp_path / "a"), run(tmp_path / "b", questions=QUESTIONS[:1])
    mean = mean_of([a, b])
    assert mean.pass_at_k[1].mean == pytest.approx((1 / 3 + 3 / 4) / 2)
    assert mean.majority_vote.mean == pytest.approx((1 / 3 + 1) / 2)
    text = rendered(render_table({"a": a, "b": b, "mean": mean}, [1, 2, 4]))
    assert "54.2" in text
    assert list(mean_of([a, run(tmp_path / "c", ks=[4])]).pass_at_k) == [4]


# Rescoring


def test_rescoring_verifies_all_again_and_samples_nothing(tmp_path):
    evaluation = run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    verdicts = tmp_path / "verdicts.jsonl"
    verdicts.write_text(verdicts.read_text().replace('"right"', '"wrong"'))  # an older verifier's
    (tmp_path / "summary.json").unlink()
    assert rescore(QUESTIONS, tmp_path) == evaluation
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert list(rescore(QUESTIONS, tmp_path, ks=[4]).pass_at_k) == [4]
    corrected = QuestionSet([QUESTIONS[0], Question("b", "3+4?", "-1"), QUESTIONS[2]])
    assert rescore(corrected, tmp_path).correct == {"a": 3, "b": 2, "c": 0}


def test_rescoring_leaves_out_what_can_no_longer_be_checked(tmp_path):
    run(tmp_path)
    now = QuestionSet([QUESTIONS[0], Question("b", "3+4?", "$t(0,4]$"), QUESTIONS[2], Question("new", "1+2?", "3")])
    evaluation = rescore(now, tmp_path)
    assert evaluation.correct == {"a": 3, "c": 0}
    assert evaluation.unusable_gold == ("b", "new")


def test_rescoring_needs_all_samples_and_their_questions(tmp_path):
    with pytest.raises(UserError, match="holds no samples"):
        rescore(QUESTIONS, tmp_path)
    run(tmp_path)
    with pytest.raises(UserError, match=r"samples of 2 questions that the set .* does not have, such as 'b'"):
        rescore(QUESTIONS[:1], tmp_path)
    samples = tmp_path / "samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="question 'c' has 3 samples in a row, not 4"):
        rescore(QUESTIONS, tmp_path)
    samples.write_bytes(whole)
    with pytest.raises(UserError, match="pass@8 cannot be estimated from 4 samples"):
        rescore(QUESTIONS, tmp_path, ks=[8])


def test_completions_whose_tokens_nobody_counted(tmp_path):
    queue = [Completion(completion.text, None, completion.finished) for completion in QUEUE]
    assert run(tmp_path, queue=queue).mean_tokens is None
    assert load_evaluation(tmp_path).mean_tokens is None


def test_a_name_that_the_package_does_not_have():
    with pytest.raises(AttributeError, match=r"'ta_grpo\.evaluation' has no attribute 'no_such'"):
        ta_grpo.evaluation.no_such  # noqa: B018


# Tables and comparisons


def rendered(table):
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_table_shows_per_cent_with_intervals(tmp_path):
    evaluation, single = run(tmp_path / "all"), run(tmp_path / "one", questions=QUESTIONS[:1])
    text = rendered(render_table({"base": evaluation, "one [b]question": single}, [1, 4, 8]))
    interval = evaluation.pass_at_k[1]
    assert f"33.3 [{100 * interval.low:.1f},\u00a0{100 * interval.high:.1f}]" in text
    base, one = (line for line in text.splitlines() if " × 4" in line)
    assert "3 × 4" in base
    assert "│      – │" in base
    assert [cell.strip() for cell in base.split("│")[-4:-1]] == ["16.7", "41.7", "16.7"]
    assert "one [b]question" in one
    assert "75.0 " in one
    assert "pass@8" in text


def test_comparison_is_paired_by_question(tmp_path):
    reversed_set = QuestionSet(reversed(QUESTIONS), prompt_template="{question}")
    a = run(tmp_path / "a")
    b = run(tmp_path / "b", queue=drawn(*[RIGHT % 17] * 4, *[WRONG] * 4, *[RIGHT % 2] * 4), questions=reversed_set)
    assert b.correct == {"c": 4, "b": 0, "a": 4}
    compared = compare(a, b, [1, 2])
    assert list(compared) == [1, 2]
    assert compared[1].difference == pytest.approx((3 + 1 + 0 - 4 - 0 - 4) / 12)
    assert compared[1].n == 3
    same_in_other_order = drawn(*[NONE] * 4, RIGHT % 7, *[WRONG] * 3, *[RIGHT % 2] * 3, WRONG)
    same = compare(a, run(tmp_path / "c", queue=same_in_other_order, questions=reversed_set), [1])[1]
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_comparison_table_shows_points_with_intervals_and_p(tmp_path):
    a, b = run(tmp_path / "a"), run(tmp_path / "b", queue=drawn(*[NONE] * 12))
    gap = compare(a, b, [1])[1]
    text = rendered(comparison_table({"sums": {1: gap}}, [1, 2]))
    assert f"+33.3 [{100 * gap.low:+.1f},\u00a0{100 * gap.high:+.1f}] p={gap.p_value:.2g}" in text
    assert "–" in text
    alone = PairedComparison(1.0, math.nan, math.nan, p_value=1.0, n=1)
    assert "+100.0 p=1 " in rendered(comparison_table({"one question": {1: alone}}, [1]))


def test_comparison_needs_the_same_questions_and_enough_samples(tmp_path):
    a, b = run(tmp_path / "a"), run(tmp_path / "b", questions=QUESTIONS[:2])
    with pytest.raises(UserError, match=r"1 only in the first \(such as c\)"):
        compare(a, b, [1])
    with pytest.raises(UserError, match="pass@8 cannot be estimated from 4 samples"):
        compare(a, a, [8])
