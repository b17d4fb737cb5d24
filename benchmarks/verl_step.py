"""CPU time of a step of verl's trainer with the plug-in, over one of stock verl with the same number of completions.

Run in verl's environment: ``.venv/verl/bin/python benchmarks/verl_step.py --pairs 3``. Aim: at most 1.10.

Runs of the two arms alternate, each a Ray of its own on the CPU (``tests/verl_backend/cpu_support.py``), with the
embedded policy, the same questions and our reward; stock verl has its own trainer and agent loop, and no rephrasings. A
step's CPU time is that of all processes of the run, Ray's too, between two checkpoints, which are kept in both arms. A
pair's ratio is that of its median steps. Where a machine's speed drifts from minute to minute, ``--at-once`` lets both
arms of a pair see the same of it. The completions of a step must be as many in both arms, and their lengths are
printed, since they are sampled.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "verl_backend"), str(ROOT / "benchmarks")]

import psutil  # noqa: E402
import transfer_queue as tq  # noqa: E402
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback  # noqa: E402

COMPLETIONS, QUESTIONS = 16, 4
WARM_UP_STEPS = 2
# An environment variable that Ray's processes inherit: the process that has started Ray.
DRIVER = "TA_GRPO_BENCHMARK_DRIVER"


class CPUTimes(CheckpointCallback):
    """Notes, at each checkpoint, the CPU seconds of all processes of the run, and how much the step has sampled."""

    def on_save(self, trainer, global_step, checkpoint_dir, async_save=False, **kwargs):
        seconds = cpu_seconds(int(os.environ[DRIVER]))
        keys = [key for key, tag in tq.kv_list("train")["train"].items() if not tag.get("is_prompt", False)]
        responses = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["responses"])["responses"]
        line = {
            "step": global_step,
            "seconds": sum(seconds.values()),
            "processes": seconds,
            "completions": len(keys),
            "tokens": sum(len(response) for response in responses.unbind()),
        }
        with open(Path(trainer.config.trainer.default_local_dir) / "cpu.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def cpu_seconds(driver: int) -> dict[str, float]:
    """User and system time, by name, of a process and of all that descend from it, ended ones too.

    Ray's daemons are children of the process that starts Ray, and its workers are theirs.
    """
    root = psutil.Process(driver)
    seconds: Counter[str] = Counter()
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            seconds[process.name()] += sum(process.cpu_times()[:4])
    return dict(seconds)


def run(arm: str, steps: int, place: Path) -> None:
    """One run, in this process and Ray's."""
    import cpu_support
    from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

    from ta_grpo.verl.export import export_file
    from ta_grpo.verl.launch import TRAIN_FILE, VerlTraining, compose, prepare
    from ta_grpo.verl.trainer import TaskRunner

    os.environ[DRIVER] = str(os.getpid())
    launch = prepare(
        VerlTraining(
            model="tiny",
            questions="tiny",
            output_dir=place,
            num_generations=COMPLETIONS,
            trl={
                "questions_per_step": QUESTIONS,
                "max_steps": steps,
                "max_completion_length": 32,
                "per_device_train_batch_size": 32,
                "save_steps": 1,
            },
            overrides=(
                *cpu_support.OVERRIDES,
                "trainer.checkpoint_callback_class=verl_step.CPUTimes",
                "actor_rollout_ref.actor.checkpoint.save_contents=[model]",
                "ray_kwargs.ray_init.num_cpus=32",
                "++ray_kwargs.ray_init.num_gpus=1",
                "++ray_kwargs.ray_init.include_dashboard=False",
            ),
        )
    )
    stock = arm == "stock"
    export_file(place / TRAIN_FILE, launch.questions, launch.template, for_training=not stock)
    loop = ["actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent"] if stock else []
    run_ppo(compose([*launch.overrides, *loop]), task_runner_class=TaskRunnerV1 if stock else TaskRunner)


@dataclass(frozen=True)
class Steps:
    """The steps of one run, after the first ones: CPU seconds of each, and tokens of a completion."""

    seconds: list[float]
    mean_length: float


def measured(arm: str, steps: int, keep: Path | None) -> Steps:
    """One run, in a process of its own.

    Raises:
        RuntimeError: a step of it had other completions than were asked for.
    """
    import cpu_support

    with tempfile.TemporaryDirectory() as place:
        environment = os.environ | cpu_support.environment()
        environment["PYTHONPATH"] += os.pathsep + str(ROOT / "benchmarks")
        command = [sys.executable, __file__, "--arm", arm, "--steps", str(steps), "--place", place]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        text = (Path(place) / "verl" / "cpu.jsonl").read_text(encoding="utf-8")
    if keep:
        with open(keep, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps({"arm": arm} | json.loads(line)) + "\n" for line in text.splitlines()))
    lines = [json.loads(line) for line in text.splitlines()]
    if any(line["completions"] != QUESTIONS * COMPLETIONS for line in lines):
        raise RuntimeError(f"{arm}: {[line['completions'] for line in lines]} completions a step")
    between = [after["seconds"] - before["seconds"] for before, after in pairwise(lines)]
    tokens = [line["tokens"] / line["completions"] for line in lines]
    return Steps(between[WARM_UP_STEPS - 1 :], statistics.fmean(tokens[WARM_UP_STEPS:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--at-once", action="store_true", help="run the two arms of a pair side by side")
    parser.add_argument("--keep", type=Path, help="file to append each step's figures to")
    parser.add_argument("--arm", choices=["ours", "stock"])
    parser.add_argument("--place", type=Path)
    asked = parser.parse_args()
    if asked.arm:
        run(asked.arm, asked.steps, asked.place)
        return
    ratios = []
    for pair in range(asked.pairs):
        order = ("ours", "stock") if pair % 2 == 0 else ("stock", "ours")
        with ThreadPoolExecutor(2 if asked.at_once else 1) as pool:
            steps = dict(zip(order, pool.map(lambda arm: measured(arm, asked.steps, asked.keep), order), strict=True))
        ours, stock = (statistics.median(steps[arm].seconds) for arm in ("ours", "stock"))
        ratios.append(ours / stock)
        lengths = " and ".join(f"{steps[arm].mean_length:.1f}" for arm in ("ours", "stock"))
        print(
            f"pair {pair + 1}: ours {ours:.2f} s, stock {stock:.2f} s a step, ratio {ratios[-1]:.3f}; {lengths} tokens "
            "a completion",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]")


if __name__ == "__main__":
    main()
