"""The launch configurations say what they claim, as accelerate reads them; neither GPUs nor DeepSpeed are needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedType,
    FullyShardedDataParallelPlugin,
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
)

RECIPES = Path(__file__).parent.parent / "recipes" / "accelerate"
KINDS = {
    "ddp": DistributedType.MULTI_GPU,
    "fsdp2": DistributedType.FSDP,
    "zero2": DistributedType.DEEPSPEED,
    "zero3": DistributedType.DEEPSPEED,
}


def launched(name: str) -> tuple[Any, dict[str, str]]:
    """The launcher's arguments and the environment that it gives to each process."""
    words = ["--config_file", str(RECIPES / f"{name}.yaml"), "--num_processes", "4", "--main_process_port", "0"]
    arguments, defaults, _ = _validate_launch_command(
        launch_command_parser().parse_args([*words, "-m", "ta_grpo.cli", "train"])
    )
    if KINDS[name] == DistributedType.DEEPSPEED:
        arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        return arguments, prepare_deepspeed_cmd_env(arguments)[1]
    return arguments, prepare_multi_gpu_env(arguments)


@pytest.fixture
def environment(monkeypatch):
    """Sets the environment of a launched process."""

    def set_all(values: dict[str, str]) -> None:
        for name, value in values.items():
            if os.environ.get(name) != value:
                monkeypatch.setenv(name, value)

    return set_all


def test_every_recipe_is_listed():
    assert {path.stem for path in RECIPES.glob("*.yaml")} == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_the_recipe_and_launches_what_it_says(name):
    config = load_config_from_file(str(RECIPES / f"{name}.yaml"))  # refuses keys that it does not know
    assert isinstance(config, ClusterConfig)
    assert config.distributed_type == KINDS[name]
    assert not config.use_cpu
    arguments, environment = launched(name)
    assert (arguments.num_processes, arguments.num_machines) == (4, 1)
    assert arguments.use_deepspeed == (KINDS[name] == DistributedType.DEEPSPEED)
    assert arguments.use_fsdp == (KINDS[name] == DistributedType.FSDP)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    known = vars(arguments)
    for section in ("fsdp_config", "deepspeed_config"):
        for key, value in getattr(config, section).items():  # the launcher passes over a key that it does not know
            assert key in known, f"{section}.{key} is not an argument of accelerate launch"
            assert known[key] == value


def test_fsdp2_shards_everything_and_saves_whole_weights(environment):
    environment(launched("fsdp2")[1])
    assert os.environ["ACCELERATE_USE_FSDP"] == "true"
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert plugin.cpu_ram_efficient_loading
    assert not plugin.activation_checkpointing


@pytest.mark.parametrize(("name", "stage"), [("zero2", 2), ("zero3", 3)])
def test_deepspeed_gets_its_stage_and_the_batch_of_the_training_settings(environment, name, stage):
    environment(launched(name)[1])
    assert os.environ["ACCELERATE_USE_DEEPSPEED"] == "true"
    plugin = DeepSpeedPlugin()
    assert plugin.deepspeed_config["zero_optimization"]["stage"] == stage
    assert plugin.zero3_init_flag == (stage == 3)
    assert plugin.deepspeed_config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] == (stage == 3)
    # transformers' trainer fills these in from its own settings; a number here would contradict them.
    for batch in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"):
        assert plugin.deepspeed_config[batch] == "auto", batch
