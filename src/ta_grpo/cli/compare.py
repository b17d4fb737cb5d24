"""``ta-grpo compare``: run the arms of an experiment over several seeds, and compare them at equal compute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..controls.experiment import ExperimentSettings, open_experiment, run_arm, train_settings
from ..rundir import write_json_atomic
from ..settings import help_of
from ..trl.train_settings import TrainSettings
from .flags import flags_of, resolve
from .output import AsJson, print_json, print_pairs, print_table, print_text
from .train import trl_names


def compare(
    experiment: Annotated[Path, Parameter(help="YAML file of the experiment: its settings, and any of train or TRL.")],
    /,
    flags: flags_of(ExperimentSettings) = None,  # pyright: ignore[reportInvalidTypeForm]
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Print what would be run, and stop.")] = False,
    json: AsJson = False,
) -> None:
    """Run the arms of an experiment, seed by seed, and compare them at equal compute, paired and with intervals."""
    settings = resolve(ExperimentSettings, flags, experiment, also={"train": [*help_of(TrainSettings), *trl_names()]})
    if dry_run:
        _dry_run(settings, json)
        return
    from ..controls.results import budget_table, compare_arms, difference_table, pass_table

    with open_experiment(settings):
        for arm, seed in settings.jobs():
            run_arm(settings, arm, seed)
        comparison = compare_arms(settings)
        write_json_atomic(settings.output_dir / "comparison.json", comparison.to_json())
    if json:
        print_json(comparison.to_json())
        return
    for name in comparison.pass_at_k:
        print_table(pass_table(comparison, name))
        if comparison.differences[name]:
            print_table(difference_table(comparison, name))
    print_table(budget_table(comparison))
    for warning in comparison.warnings:
        print_text(f"note: {warning}")


def _dry_run(settings: ExperimentSettings, json: bool) -> None:
    """Every arm and seed, done or to do, with what train would be asked."""
    from ..trl.training import batch_arithmetic, read_questions, trainer_config, with_typed_trl

    jobs, counts = list(settings.jobs()), {}
    for arm, seed in dict(jobs).items():  # one for each arm: they are the same for every seed
        asked = train_settings(settings, arm, seed, settings.output_dir, write=False)
        arithmetic = batch_arithmetic(trainer_config(with_typed_trl(asked)), read_questions(asked))
        counts[arm] = {"updates": arithmetic.updates, "completions": arithmetic.completions}
    plans = [
        {"arm": arm, "seed": seed, "done": settings.result_file(arm, seed).exists(), **counts[arm]}
        for arm, seed in jobs
    ]
    if json:
        print_json({"settings": settings.record(), "jobs": plans})
        return
    print_pairs("Experiment", settings.record().items())
    told = ((plan, f"{plan['updates']} updates, {plan['completions']:,} completions") for plan in plans)
    print_pairs("\nTo run", [(f"{p['arm']} seed {p['seed']}", "done" if p["done"] else text) for p, text in told])
