"""What a plan says against what is: weights counted, tensors measured, batches as the trainer has them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from ta_grpo.cli import main
from ta_grpo.errors import UserError
from ta_grpo.plan import PlanSettings, plan
from ta_grpo.plan.layouts import layouts
from ta_grpo.plan.memory import GIB, activations, cache_bytes_per_token, training_state
from ta_grpo.plan.model_size import ModelSize, model_size, size_of
from ta_grpo.plan.workload import workload
from ta_grpo.settings import read_settings_file
from test_real_model import smollm2
from tiny_models import save_model

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "qwen3_1.7b" / "plan.yaml"
SMALL = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
}
KINDS = ["llama", "qwen2", "qwen3", "mistral", "gemma2"]


def config(kind: str, **sizes: Any) -> Any:
    return AutoConfig.for_model(kind, **(SMALL | {"pad_token_id": 0} | sizes))


def real_model(kind: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> Any:
    attention = "eager" if kind == "gemma2" else "sdpa"
    return AutoModelForCausalLM.from_config(config(kind, **sizes), dtype=dtype, attn_implementation=attention)


def asked(**values: Any) -> PlanSettings:
    return PlanSettings(**({"questions": "100", "model": "unused"} | values))


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_counted_as_a_real_model_has_them(kind, tied):
    size = size_of(config(kind, tie_word_embeddings=tied))
    model = real_model(kind, tie_word_embeddings=tied)
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    layers = [sum(p.numel() for p in layer.parameters()) for layer in model.model.layers]
    assert size.largest_unit == max(*layers, model.get_input_embeddings().weight.numel())
    assert (size.layers, size.hidden, size.vocabulary) == (3, 64, 300)


def test_qwen3_1_7b_is_counted_by_hand():
    """Sizes of its published config, in the recipe, added up matrix by matrix."""
    described = PlanSettings(**read_settings_file(RECIPE))
    h, i, q, k, d = 2048, 6144, 16 * 128, 8 * 128, 128
    layer = h * (q + 2 * k) + q * h + 3 * h * i + 2 * h + 2 * d
    assert model_size(described).parameters == 151936 * h + 28 * layer + h


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("rank", [1, 8])
def test_adapters_are_counted_as_peft_makes_them(kind, rank):
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(real_model(kind), LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert size_of(config(kind)).adapter_parameters * rank == trained


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
def test_weights_gradients_and_optimiser_state_are_those_that_torch_holds(dtype, lora):
    """One real AdamW step; the only tensors left out are its step counters."""
    from peft import LoraConfig, get_peft_model

    model = real_model("qwen3", dtype=getattr(torch, dtype))
    size = size_of(model.config)
    if lora:
        adapters = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained)
    model(torch.arange(8)[None]).logits.float().square().mean().backward()
    optimiser.step()
    moments = [state[name] for state in optimiser.state.values() for name in ("exp_avg", "exp_avg_sq")]
    measured = {
        "weights": bytes_of(model.parameters()),
        "gradients": bytes_of(parameter.grad for parameter in trained),
        "optimiser": bytes_of(moments),
    }
    assert training_state(size, asked(dtype=dtype, use_peft=lora, lora_r=4), "ddp", 1) == measured


@pytest.mark.parametrize("lora", [False, True])
def test_sharding_divides_what_it_says(lora):
    size = size_of(config("llama"))
    ask = asked(use_peft=lora, lora_r=4)
    trained = size.adapter_parameters * 4 if lora else size.parameters
    frozen = size.parameters if lora else 0
    state = {name: training_state(size, ask, name, 4) for name in ("zero2", "zero3", "fsdp2")}
    assert state["zero2"]["weights"] == 2 * (frozen + trained)
    assert state["zero3"]["weights"] == state["zero2"]["weights"] / 4
    for name in ("zero2", "zero3"):  # 16 bytes a trained parameter in all
        assert state[name]["gradients"] + state[name]["optimiser"] == 14 * trained / 4
    assert sum(state["fsdp2"].values()) == (4 * frozen + 16 * trained) / 4


# What each of two processes holds after one step of a model that PyTorch itself has sharded, in fp32.
SHARDED = """
import json, sys
import torch
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

torch.distributed.init_process_group("gloo")
mesh = torch.distributed.init_device_mesh("cpu", (2,))
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(sys.argv[1])), dtype=torch.float32)
for part in (*model.model.layers, model):
    fully_shard(part, mesh=mesh)
optimiser = torch.optim.AdamW(model.parameters())
model(torch.arange(8)[None]).logits.square().mean().backward()
optimiser.step()
held = lambda tensors: sum(tensor.to_local().numel() * tensor.element_size() for tensor in tensors)
moments = [state[name] for state in optimiser.state.values() for name in ("exp_avg", "exp_avg_sq")]
if torch.distributed.get_rank() == 0:
    print(json.dumps({
        "weights": held(model.parameters()),
        "gradients": held(p.grad for p in model.parameters()),
        "optimiser": held(moments),
    }))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_fsdp2_leaves_each_process_what_the_plan_says(tmp_path):
    (tmp_path / "sharded.py").write_text(SHARDED)
    described = json.dumps({"model_type": "llama", "pad_token_id": 0, **SMALL})
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "sharded.py", described],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert training_state(size_of(config("llama")), asked(), "fsdp2", 2) == measured


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("dtype", "autocast"), [(torch.bfloat16, False), (torch.float32, True)])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_activations_are_those_that_torch_saves(kind, dtype, autocast, checkpointing):
    """The tensors that a real forward pass keeps for its backward, by the layer: models of two and of four layers."""
    rows, tokens = 2, 64

    def saved(layers: int) -> int:
        model = real_model(kind, dtype=dtype, num_hidden_layers=layers).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        kept: dict[int, Any] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights and tuple(tensor.shape) not in casted:
                kept[storage.data_ptr()] = storage
            return tensor

        casted = {tuple(p.shape) for p in model.parameters()} | {tuple(p.shape[::-1]) for p in model.parameters()}
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            model.model(input_ids=torch.ones(rows, tokens, dtype=torch.long), use_cache=False)
        return sum(storage.nbytes() for storage in kept.values())

    by_layer = (saved(4) - saved(2)) / 2
    ask = asked(
        per_device_train_batch_size=rows,
        max_prompt_length=tokens // 2,
        max_completion_length=tokens // 2,
        gradient_checkpointing=checkpointing,
    )
    two, four = (activations(size_of(config(kind, num_hidden_layers=n)), ask, fp32_residual=autocast) for n in (2, 4))
    assert (four - two) / 2 == pytest.approx(by_layer, rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_are_those_of_a_real_cache(kind, dtype):
    rows, tokens = 2, 16
    cache = DynamicCache()
    with torch.no_grad():
        real_model(kind, dtype=dtype).eval()(
            torch.ones(rows, tokens, dtype=torch.long), past_key_values=cache, use_cache=True
        )
    measured = bytes_of(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert cache_bytes_per_token(size_of(config(kind)), dtype.itemsize) * rows * tokens == measured


def test_counts_are_those_of_training(tmp_path):
    """The same settings given to plan and to the trainer's own arithmetic."""
    from ta_grpo.questions import load_questions
    from ta_grpo.trl.train_settings import TrainSettings
    from ta_grpo.trl.training import batch_arithmetic, trainer_config

    for more in ({"num_train_epochs": 3.0}, {"max_steps": 7}, {"max_steps": 7, "num_iterations": 2}):
        shared = {
            "model": "tiny",
            "questions": "tiny/test",
            "num_rephrasings": 1,
            "num_generations": 8,
            "questions_per_step": 20,
            "max_completion_length": 10,
            **more,
        }
        training = batch_arithmetic(
            trainer_config(TrainSettings(**shared, output_dir=tmp_path)), load_questions("tiny/test")
        )
        work = workload(PlanSettings(**shared))
        assert work.questions == training.questions
        assert work.responses == training.completions
        assert work.responses_per_batch == training.completions_per_generation
        assert work.completion_tokens == 10 * training.completions
        assert (work.phrasings, work.completions_per_phrasing) == (2, 4)


def test_hours_and_cost_are_worked_out_by_hand():
    ask = PlanSettings(
        **(read_settings_file(RECIPE) | {"mean_prompt_length": 100.0, "mean_completion_length": 900.0}),
        gpus=8,
        sampling_gpus=2,
        layouts=["trl-server", "verl"],
        sampling_throughput=2000,
        update_throughput=8000,
        gpu_hour_price=2.5,
    )
    server, verl = plan(ask).phases
    responses = 7498 // 36 * 2 * 36 * 56
    sampling, scoring, update = server
    assert sampling.tokens == responses * 900
    assert sampling.hours == pytest.approx(responses * 900 / (2000 * 2) / 3600)
    assert sampling.cost == pytest.approx(sampling.hours * 8 * 2.5)  # the six others wait, and are paid for
    assert update.hours == pytest.approx(responses * 1000 / (8000 * 6) / 3600)
    # Scoring is a forward pass, an update three and one more for checkpointing.
    assert scoring.tokens_a_second == pytest.approx(4 * 8000)
    assert scoring.derived
    assert [phase.gpus for phase in verl] == [8, 8, 8]
    unpriced = plan(PlanSettings(**read_settings_file(RECIPE))).phases[0]
    assert all(phase.hours is None and phase.cost is None for phase in unpriced)


QWEN3 = ModelSize(1_720_574_976, 1_089_536, 311_164_928, 28, 2048, 6144, 2048, 1024, 151_936, True)


@settings(max_examples=60)
@given(
    gpus=st.integers(2, 64),
    more=st.integers(1, 8),
    rows=st.integers(1, 32),
    length=st.integers(16, 8192),
    sharding=st.sampled_from(["ddp", "zero2", "zero3", "fsdp2"]),
    beta=st.sampled_from([0.0, 0.1]),
)
def test_more_gpus_never_need_more_memory_and_longer_rows_never_less(gpus, more, rows, length, sharding, beta):
    def totals(**changed: Any) -> list[float]:
        values = {
            "gpus": gpus,
            "per_device_train_batch_size": rows,
            "max_completion_length": length,
            "sharding": sharding,
            "beta": beta,
        }
        made = layouts(QWEN3, asked(**(values | changed)))
        return [moment.total for layout in made for moment in layout.moments]

    assert all(a <= b for a, b in zip(totals(gpus=gpus * more), totals(), strict=True))
    assert all(a >= b for a, b in zip(totals(max_completion_length=2 * length), totals(), strict=True))
    assert all(a >= b for a, b in zip(totals(per_device_train_batch_size=2 * rows), totals(), strict=True))


def test_a_layout_fits_exactly_where_its_fullest_moment_does():
    for memory in (20.0, 40.0, 60.0, 80.0):
        for layout in layouts(QWEN3, asked(gpu_memory=memory, gpus=4, max_completion_length=1024)):
            full = any(moment.total > memory * GIB for moment in layout.moments)
            assert layout.fits != (full or layout.rows_at_once < 1), (layout.name, memory)


def test_vllms_rows_at_once_are_what_its_share_holds():
    ask = asked(gpus=4, tensor_parallel_size=2, vllm_gpu_memory_utilization=0.5, max_completion_length=3584)
    colocate = next(layout for layout in layouts(QWEN3, ask) if layout.name == "trl-colocate")
    pair = 2 * 0.5 * 80 * GIB - 2 * QWEN3.parameters  # one copy of the weights over two GPUs
    row = (3584 + 512) * 2 * 28 * 1024 * 2
    assert colocate.rows_at_once == 2 * math.floor(pair / row)


RUN = ["plan", "--config", str(RECIPE)]


def test_the_recipe_fits_eight_gpus_and_is_told_as_a_table_and_as_json(capsys):
    assert main([*RUN, "--gpus", "8"]) == 0
    table = capsys.readouterr().out
    assert "1.721 billion parameters" in table
    assert "trl-transformers does not fit: sampling needs" in table
    assert "These are estimates. They leave out:" in table
    assert main([*RUN, "--gpus", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["work"]["responses"] == 838_656
    assert {layout["name"]: layout["fits"] for layout in told["layouts"]} == {
        "trl-transformers": False,
        "trl-colocate": True,
        "trl-server": True,
        "verl": True,
    }
    for layout in told["layouts"]:
        for moment in layout["moments"]:
            assert moment["total"] == pytest.approx(sum(moment["parts"].values()))
    assert told["estimates"]


def test_the_numbers_of_the_page_on_scaling_are_those_of_the_plan():
    """Its tables: one GPU, many nodes, and how cost grows."""
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    described = read_settings_file(RECIPE)

    def told(title: str) -> list[list[str]]:
        lines = page[page.index(title) :].split("\n\n")[0].splitlines()[2:]
        return [[cell.strip().replace(",", "") for cell in line.strip("|").split("|")] for line in lines]

    def made(name: str, **values: Any) -> list[str]:
        layout = next(layout for layout in plan(PlanSettings(**(described | values))).layouts if layout.name == name)
        fullest = max(moment.total for moment in layout.moments) / GIB
        return [f"{fullest:.0f}" if fullest > 1000 else f"{fullest:.1f}", str(layout.rows_at_once)]

    lora = {"use_peft": True, "dtype": "bfloat16"}
    assert [row[1:] for row in told("| 80 GiB, one GPU |")] == [
        made("trl-transformers"),
        made("trl-colocate"),
        made("trl-colocate", vllm_enable_sleep_mode=True),
        made("trl-colocate", **lora),
        made("verl"),
    ]
    assert f"({made('trl-colocate', gpu_memory=24.0, **lora)[0]} GiB, 10 rows at once)" in page
    nodes = told("| Qwen3-1.7B, FSDP2")
    assert [row[1:] for row in nodes] == [
        made("trl-colocate", gpus=gpus, sharding="fsdp2") + made("verl", gpus=gpus) for gpus in (8, 16, 32)
    ]
    four = [made("trl-colocate", gpus=4, sharding=name)[0] for name in ("ddp", "zero2", "zero3", "fsdp2")]
    assert "ddp {} GiB, zero2 {}, zero3 {}, fsdp2 {}".format(*four) in page
    for n, g, length, *counts in told("| N | G |"):
        groups = {"num_rephrasings": int(n), "num_generations": (int(n) + 1) * int(g)}
        work = workload(PlanSettings(**(described | groups | {"max_completion_length": int(length)})))
        in_billions = [f"{tokens / 1e9:.2f} billion" for tokens in (work.completion_tokens, work.tokens_trained)]
        assert counts == [str(work.responses), *in_billions]


def test_what_fits_in_no_layout_is_refused_with_what_to_try(capsys):
    assert main([*RUN, "--gpus", "1", "--gpu-memory", "24", "--layouts", "[trl-colocate]"]) == 2
    error = capsys.readouterr().err
    assert "does not fit. trl-colocate: " in error
    assert "of 24 GiB a GPU" in error
    assert "--sharding zero2, zero3 or fsdp2 over more GPUs, or --use-peft" in error
    assert "Traceback" not in error


def described(**changes):
    """Words for a model that is described, not named."""
    sizes = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    }  # fmt: skip
    return [word for name, size in (sizes | changes).items() for word in (f"--{name.replace('_', '-')}", str(size))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--questions", "9"], "--hidden-size, --intermediate-size"),
        (["--model", "nobody/nothing", "--questions", "9"], "leave --model out and give its sizes: --model-type"),
        (["--model", "tiny"], "--questions is missing"),
        (["--model", "tiny", "--questions", "0"], "1 or more"),
        (["--model", "tiny", "--questions", "5"], "5 questions do not fill a generation batch of questions_per_step=8"),
        (["--model", "tiny", "--questions", "9", "--num-generations", "30"], "a multiple of num_rephrasings + 1 = 4"),
        (["--model", "tiny", "--questions", "9", "--gpus", "0"], "gpus=0 must be more than 0"),
        (["--model", "tiny", "--questions", "9", "--beta", "-0.1"], "beta=-0.1 must be 0 or more"),
        (["--model", "tiny", "--questions", "9", "--gpus", "2", "--sampling-gpus", "2"], "leaves none of 2 GPUs"),
        (["--questions", "9", *described(model_type="no_such")], "'no_such' is not an architecture"),
        (["--questions", "9", *described(hidden_size=65)], "--head-dim is missing: hidden_size=65"),
        (["--questions", "9", *described(model_type="vit")], "vit is none for transformers"),
        (["--model", "tiny", "--questions", "9", "--sharding", "zero9"], "use one of ddp, zero2, zero3, fsdp2"),
        (["--model", "tiny", "--questions", "9", "--layouts", "[nemo]"], "use one of trl-transformers"),
        (["--model", "tiny", "--questions", "9", "--layouts", "[trl-server]"], "--gpus 2 or more"),
        (["--model", "tiny", "--questions", "9", "--mean-prompt-length", "600"], "is above max_prompt_length=512"),
        (["--model", "tiny", "--questions", "9", "--vllm-gpu-memory-utilization", "1.2"], "at most 1"),
        (["--model", "tiny", "--questions", "9", "--gpus", "3", "--tensor-parallel-size", "2"], None),
    ],
    ids=str,
)
def test_requests_that_cannot_be_planned(words, message, capsys):
    code = main(["plan", *words])
    if message is None:  # other layouts still fit; this one says why it does not
        assert code == 0
        assert "tensor_parallel_size=2 does not divide 3 sampling GPUs" in capsys.readouterr().out
        return
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_model_is_read_from_a_directory_without_its_weights(tmp_path):
    save_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    size = model_size(asked(model=str(tmp_path / "model")))
    assert (size.layers, size.hidden, size.key_value_width) == (2, 32, 16)


@pytest.mark.parametrize("name", ["model.gguf", "model/config.json"])
def test_a_cut_file_of_a_model_is_told_with_what_replaces_it(tmp_path, capsys, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"GGUF\x03\0\0\0")
    model = path if path.suffix == ".gguf" else path.parent
    assert main(["plan", "--model", str(model), "--questions", "9"]) == 2
    shown = capsys.readouterr()
    assert f"the config of model {model} cannot be read: " in shown.err
    assert "leave --model out and give its sizes" in shown.err


@pytest.mark.slow
def test_a_model_is_read_from_a_gguf_file():
    """SmolLM2-135M: 30 layers, three heads of keys and values, 134,515,008 parameters with its tied embedding."""
    size = model_size(asked(model=str(smollm2())))
    assert (size.layers, size.key_value_width, size.parameters) == (30, 3 * 64, 134_515_008)


def test_a_model_that_the_formulas_do_not_describe_is_refused():
    with pytest.raises(UserError, match="built otherwise than this plan's formulas assume"):
        size_of(AutoConfig.for_model("gpt2", n_layer=1, n_embd=8, n_head=2, vocab_size=20))
