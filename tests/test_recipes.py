"""Every recipe is parsed by the verb it is for, and dry-run with the counts it promises; neither GPUs nor a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ta_grpo.cli import main
from ta_grpo.cli.flags import resolve
from ta_grpo.diagnostics.settings import DiagnoseSettings
from ta_grpo.evaluation.settings import EvalSettings
from ta_grpo.questions import Question, save_questions
from ta_grpo.settings import read_settings_file
from ta_grpo.verl.launch import VerlTraining
from ta_grpo.verl.mapping import mapped_overrides

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes"
MODELS = {
    "qwen3_1.7b": "Qwen/Qwen3-1.7B",
    "qwen3_4b": "Qwen/Qwen3-4B",
    "llama3.2_1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2_3b": "meta-llama/Llama-3.2-3B-Instruct",
}
# Parameters as their publishers count them, in billions.
PARAMETERS = {"qwen3_1.7b": 1.72, "qwen3_4b": 4.02, "llama3.2_1b": 1.24, "llama3.2_3b": 3.21}
KINDS = ("plan", "trl", "verl", "compare")


@pytest.fixture(scope="module")
def math_questions(tmp_path_factory) -> str:
    """As many questions as the paper trains on, each with six rephrasings."""
    path = tmp_path_factory.mktemp("data") / "math.jsonl"
    texts = tuple(f"What is {i} + 1?" for i in range(6))
    save_questions([Question(f"q{i}", f"What is {i} plus one?", str(i + 1), texts) for i in range(7498)], path)
    return str(path)


def asked(capsys, *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_every_recipe_is_tried_here_or_where_its_verb_is():
    tried = {f"{model}/{kind}.yaml" for model in MODELS for kind in KINDS}
    tried |= {f"paper/{name}.yaml" for name in ("rephrase_math", "eval", "diagnose")}
    tried |= {f"{name}.yaml" for name in ("smollm2_gsm8k", "tiny_controls", "tiny_small_groups", "word_order")}
    there = {str(path.relative_to(RECIPES)) for path in RECIPES.rglob("*.yaml")}
    assert {name for name in there if not name.startswith("accelerate/")} == tried


@pytest.mark.parametrize("model", MODELS)
def test_the_plan_counts_the_model_and_the_paper_s_responses(capsys, model):
    told = asked(capsys, "plan", "--config", str(RECIPES / model / "plan.yaml"), "--gpus", "8", "--sharding", "fsdp2")
    assert told["model"]["parameters"] / 1e9 == pytest.approx(PARAMETERS[model], abs=0.005)
    assert told["work"]["responses"] == 838_656
    fits = {layout["name"]: layout["fits"] for layout in told["layouts"]}
    assert fits["trl-colocate"]
    assert fits["verl"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("flags", "phrasings"),
    [([], 7), (["--num-rephrasings", "0"], 1), (["--off-prompt-negatives", "drop"], 7)],
    ids=["ta-grpo", "grpo-matched", "ta-pull"],
)
def test_the_arms_of_the_paper_are_dry_run_with_trl(capsys, tmp_path, math_questions, model, flags, phrasings):
    words = ["--config", str(RECIPES / model / "trl.yaml"), "--questions", math_questions, "--dry-run"]
    # One process here stands for the eight of the recipe: a pass of a whole group.
    one = ["--output-dir", str(tmp_path / "run"), "--per-device-train-batch-size", "56"]
    told = asked(capsys, "train", *words, *one, *flags)
    batch = told["batch"]
    assert told["settings"]["model"] == MODELS[model]
    assert (batch["completions_per_question"], batch["phrasings"]) == (56, phrasings)
    assert (batch["questions_per_generation"], batch["completions_per_generation"]) == (36, 2016)
    assert (batch["updates_per_generation"], batch["questions_per_update"]) == (2, 18)
    assert (batch["updates"], batch["completions"]) == (832, 838_656)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", MODELS)
def test_trl_and_verl_are_asked_for_the_same_training(tmp_path, model):
    """verl's own dry run is in its environment; here, that it has all settings, with the values of TRL's recipe."""
    with_verl = read_settings_file(RECIPES / model / "verl.yaml")
    with_trl = read_settings_file(RECIPES / model / "trl.yaml")
    assert with_verl.pop("backend") == "verl"
    known = set(VerlTraining.__dataclass_fields__)
    overrides = mapped_overrides(
        {name: value for name, value in with_verl.items() if name not in known}, lambda step: 7498 // step
    )
    VerlTraining(**{name: with_verl[name] for name in known & with_verl.keys()}, output_dir=tmp_path / "run")
    assert overrides["trainer.total_epochs"] == 2
    of_the_back_end = {"questions_per_step", "warmup_steps", "save_steps"}
    shared = with_verl.keys() - of_the_back_end
    assert {name: with_trl[name] for name in shared} == {name: with_verl[name] for name in shared}
    assert with_trl.keys() - with_verl.keys() == {
        *("advantage_scope", "steps_per_generation", "gradient_accumulation_steps", "use_bias_correction_kl"),
        *("use_vllm", "vllm_mode", "vllm_gpu_memory_utilization"),
    }
    # A tenth of the batches is warm-up, as a tenth of the updates is with TRL.
    assert with_verl["warmup_steps"] == round(0.1 * 2 * (7498 // 36))


@pytest.mark.parametrize("kind", ["trl", "verl"])
def test_all_models_are_trained_alike(kind):
    recipes = [read_settings_file(RECIPES / model / f"{kind}.yaml") for model in MODELS]
    assert [recipe.pop("model") for recipe in recipes] == list(MODELS.values())
    assert all(recipe == recipes[0] for recipe in recipes)


@pytest.mark.parametrize("model", MODELS)
def test_the_experiments_give_every_arm_the_same_responses(capsys, tmp_path, math_questions, model):
    words = ["--questions", math_questions, "--output-dir", str(tmp_path / "out"), "--dry-run", "--seeds", "0"]
    told = asked(capsys, "compare", str(RECIPES / model / "compare.yaml"), *words, "--only", "grpo-matched,ta-grpo")
    assert [(job["updates"], job["completions"]) for job in told["jobs"]] == [(832, 838_656)] * 2
    assert told["settings"]["model"] == MODELS[model]


def test_rephrasing_is_dry_run_with_its_price(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    path = tmp_path / "math.jsonl"
    save_questions([Question(f"q{i}", f"What is {i} plus one?", str(i + 1)) for i in range(5)], path)
    output, config = str(tmp_path / "out.jsonl"), str(RECIPES / "paper" / "rephrase_math.yaml")
    told = asked(capsys, "rephrase", str(path), "-o", output, "--config", config, "--dry-run")
    assert told["settings"]["model"] == "gpt-4-turbo"
    assert told["forecast"]["missing"] == 30
    assert told["forecast"]["cost"] > 0


def test_evaluation_and_diagnosis_parse():
    settings = resolve(EvalSettings, None, RECIPES / "paper" / "eval.yaml")
    asked_for = (settings.num_samples, settings.temperature, settings.top_p, settings.max_new_tokens)
    assert asked_for == (128, 0.6, 0.95, 3072)
    assert len(settings.benchmarks) == 6
    assert resolve(DiagnoseSettings, None, RECIPES / "paper" / "diagnose.yaml").num_generations == 56


@pytest.mark.parametrize("name", ["smollm2_gsm8k", "word_order"])
def test_small_recipes_are_dry_run(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(ROOT / "examples")  # where the questions and the reward of word_order lie
    path = tmp_path / "questions.jsonl"
    save_questions([Question(f"q{i}", f"{i} and one?", str(i + 1), ("a?", "b?", "c?")) for i in range(16)], path)
    words = ["--questions", str(path)] if name == "smollm2_gsm8k" else []
    output = ["--output-dir", str(tmp_path / "run"), "--dry-run"]
    told = asked(capsys, "train", "--config", str(RECIPES / f"{name}.yaml"), *words, *output)
    assert told["batch"]["phrasings"] == 4


@pytest.mark.parametrize("name", ["tiny_controls", "tiny_small_groups"])
def test_controls_of_the_embedded_world_are_dry_run(capsys, tmp_path, name):
    words = ["--output-dir", str(tmp_path / "out"), "--dry-run", "--seeds", "0"]
    told = asked(capsys, "compare", str(RECIPES / f"{name}.yaml"), *words)
    assert {job["completions"] for job in told["jobs"]} == {12_800}
