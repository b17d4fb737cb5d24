"""The settings that TA-GRPO adds to TRL's ``GRPOConfig``."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from trl import GRPOConfig  # pyright: ignore[reportPrivateImportUsage]

from ..errors import UserError
from ..group import nearest_group_sizes

logger = logging.getLogger(__name__)

RATIO_ANCHORS = ("original", "importance", "sampled")
ADVANTAGE_SCOPES = ("joint", "per_phrasing")
OFF_PROMPT_NEGATIVES = ("keep", "drop")
# Divided by the tokens of the generation batch, whatever rows are added to it.
_TOKEN_NORMALISED_LOSSES = ("dapo", "cispo")


@dataclass
class TAGRPOConfig(GRPOConfig):
    """``GRPOConfig`` with the settings of TA-GRPO. All other fields keep TRL's names, meaning and defaults.

    Three settings of TRL meet completions that were sampled under a rephrasing q_n and are trained under q_0:

    - ``vllm_importance_sampling_correction``: see its help.
    - ``off_policy_mask_threshold`` drops negative completions whose mean log(pi_sampler / pi) is above it. Without
      vLLM and with ``ratio_anchor='original'`` the sampler's log-probs are those of pi_old under q_0: it measures how
      far the policy has moved, not how far apart the prompts are. With ``'importance'`` they are those under q_n: it
      measures both, which is what the mask is for. With vLLM and ``'original'`` it is refused.
    - ``use_bias_correction_kl`` (on in TRL 1.16) multiplies the KL term by the ratio. With ``'original'`` that
      corrects for updates since the generation only, and the term stays no estimate of a KL divergence on off-prompt
      completions. With ``'importance'`` the ratio also corrects, token by token, for the prompt, without a bound.

    Raises:
        UserError: a setting that cannot work, with what to set instead.
    """

    num_rephrasings: int = field(
        default=3,
        metadata={"help": "N, rephrasings of each question that are sampled beside the original; 0 is stock GRPO."},
    )
    num_generations: int | None = field(
        default=32,
        metadata={
            "help": "K, completions of a question that are normalised together: (N + 1) * G, G for each phrasing. "
            "Must be divisible by num_rephrasings + 1."
        },
    )
    ratio_anchor: str = field(
        default="original",
        metadata={
            "help": "Prompts of the importance ratio of a completion sampled under a rephrasing q_n. 'original': "
            "pi(o|q_0) / pi_old(o|q_0), the method. 'importance': pi(o|q_0) / pi_old(o|q_n). 'sampled': "
            "pi(o|q_n) / pi_old(o|q_n), the own-prompt ratio."
        },
    )
    advantage_scope: str = field(
        default="joint",
        metadata={
            "help": "'joint': rewards are normalised over all phrasings of a question. 'per_phrasing': within each "
            "block of G completions."
        },
    )
    off_prompt_negatives: str = field(
        default="keep",
        metadata={
            "help": "'drop' sets to 0, after normalisation, the negative advantages of completions sampled under a "
            "rephrasing; 'keep' is the method."
        },
    )
    pull_to_original: float = field(
        default=0.0,
        metadata={
            "help": "lambda, with ratio_anchor='sampled': completions sampled under a rephrasing that have a positive "
            "advantage are trained once more under the original question, with this weight. 0 is off."
        },
    )
    dynamic_sampling: float = field(
        default=0.0,
        metadata={
            "help": "Groups whose rewards are all alike are replaced by groups of other questions until the batch is "
            "full, or so many times its completions have been sampled (DAPO): 3 allows three batches' worth for one. "
            "0 is off."
        },
    )
    adaptive_rephrasings: bool = field(
        default=False,
        metadata={
            "help": "Ask a question under the original and one rephrasing first, and under further ones only while its "
            "rewards are all alike; the completions saved go to other questions, so that a batch has as many. Ours, "
            "not the paper's."
        },
    )
    compact_passes: bool = field(
        default=True,
        metadata={
            "help": "Leave out of forward and backward passes what gives no gradient: rows whose advantage is 0 (with "
            "beta=0) and padding, with rows dealt by length over the passes of an update. Losses and gradients stay "
            "those of TRL up to rounding. False: bit by bit."
        },
    )
    vllm_importance_sampling_correction: bool | None = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None,
        metadata={
            "help": "TRL's correction for the difference between vLLM and the training model. Left unset it follows "
            "TRL (on) where completions are scored under the prompt they were sampled from, and is off otherwise, "
            "since TRL would compare log-probs under q_0 with log-probs under q_n. True: computed under the prompt "
            "that was sampled, pi_old(o|q_n) / pi_vllm(o|q_n), at the price of one more forward pass."
        },
    )

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_group()
        self._check_pull()
        self._check_dynamic_sampling()
        self._check_adaptive_rephrasings()
        self._settle_vllm_correction()
        super().__post_init__()
        self._check_processes()

    @property
    def num_phrasings(self) -> int:
        """P = N + 1, the original and its rephrasings."""
        return self.num_rephrasings + 1

    @property
    def generations_per_phrasing(self) -> int:
        """G = K / P, completions sampled under each phrasing."""
        assert self.num_generations is not None  # noqa: S101 - checked in __post_init__
        return self.num_generations // self.num_phrasings

    @property
    def questions_per_generation(self) -> int:
        """Questions whose groups one generation batch holds, over all processes."""
        assert self.generation_batch_size is not None  # noqa: S101 - TRL sets it
        return self.generation_batch_size // (self.num_phrasings * self.generations_per_phrasing)

    @property
    def scores_under_original(self) -> bool:
        """Whether completions sampled under a rephrasing are trained under the original question."""
        return self.num_rephrasings > 0 and self.ratio_anchor != "sampled"

    @property
    def corrects_across_prompts(self) -> bool:
        """Whether vLLM's log-probs are corrected under the prompt that was sampled, which is not the one trained."""
        return bool(self.use_vllm and self.vllm_importance_sampling_correction and self.scores_under_original)

    @property
    def has_one_update_a_generation(self) -> bool:
        """Whether every generation is used up by one update, so that pi = pi_old throughout: TRL's own condition."""
        assert self.steps_per_generation is not None  # noqa: S101 - TRL sets it
        return self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations) == 0

    @property
    def _anchors_everything(self) -> bool:
        return self.num_rephrasings > 0 and self.ratio_anchor == "original"

    @property
    def _weighs_kl_across_prompts(self) -> bool:
        across = self.num_rephrasings > 0 and self.ratio_anchor == "importance"
        return across and self.beta != 0 and self.use_bias_correction_kl

    def _check_choices(self) -> None:
        for name, choices in (
            ("ratio_anchor", RATIO_ANCHORS),
            ("advantage_scope", ADVANTAGE_SCOPES),
            ("off_prompt_negatives", OFF_PROMPT_NEGATIVES),
        ):
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"{name}={value!r} is not a choice; use one of {', '.join(choices)}")
        if not isinstance(self.num_rephrasings, int) or self.num_rephrasings < 0:
            raise UserError(f"num_rephrasings={self.num_rephrasings!r} must be a whole number, 0 or more")
        if self.num_rephrasings == 0 and self.off_prompt_negatives == "drop":
            raise UserError("off_prompt_negatives='drop' has nothing to act on with num_rephrasings=0; set one of them")

    def _check_group(self) -> None:
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name}={value} must be at least 1")
        size, phrasings = self.num_generations, self.num_phrasings
        if size is None or size < 2:
            raise UserError(f"num_generations={size} must be at least 2: advantages compare completions of a group")
        if size % phrasings:
            raise UserError(
                f"num_generations={size} does not divide into num_rephrasings + 1 = {phrasings} phrasings; "
                f"use {' or '.join(map(str, nearest_group_sizes(size, phrasings)))}"
            )
        if self.advantage_scope == "per_phrasing" and size // phrasings < 2:
            raise UserError(
                f"advantage_scope='per_phrasing' needs 2 completions a phrasing, and num_generations={size} gives "
                f"{size // phrasings}; use num_generations={2 * phrasings} or more"
            )
        if self.generation_batch_size is None:
            # Launchers tell the number of processes this way; TRL checks again once they have met.
            processes = int(os.environ.get("WORLD_SIZE", "1"))
            rounds = self.steps_per_generation or self.gradient_accumulation_steps
            rows = self.per_device_train_batch_size * processes * rounds
            if rows % size:
                rounds_needed = -(-size // (self.per_device_train_batch_size * processes))
                while self.per_device_train_batch_size * processes * rounds_needed % size:
                    rounds_needed += 1
                name = "steps_per_generation" if self.steps_per_generation else "gradient_accumulation_steps"
                raise UserError(
                    f"a generation batch of {rows} completions (per_device_train_batch_size="
                    f"{self.per_device_train_batch_size} x {processes} processes x {name}={rounds}) does not hold "
                    f"whole groups of num_generations={size}; set {name}={rounds_needed}, or "
                    f"per_device_train_batch_size to a multiple of {size}"
                )

    def _check_dynamic_sampling(self) -> None:
        budget = self.dynamic_sampling
        if budget == 0:
            return
        if not 1 < budget < float("inf"):
            raise UserError(f"dynamic_sampling={budget} must be above 1, the batch itself, or 0 for off")
        if self.pull_to_original > 0:
            raise UserError("dynamic_sampling with pull_to_original is not supported; set one of them to 0")
        if self.scale_rewards == "batch" or self.multi_objective_aggregation == "normalize_then_sum":
            raise UserError(
                "dynamic_sampling changes a batch after its rewards are normalised; set scale_rewards to 'group' or "
                "'none' and multi_objective_aggregation to 'sum_then_normalize'"
            )

    def _check_adaptive_rephrasings(self) -> None:
        if not self.adaptive_rephrasings:
            return
        if self.num_rephrasings < 2:
            raise UserError(
                f"adaptive_rephrasings with num_rephrasings={self.num_rephrasings} leaves nothing to decide: the "
                "original and one rephrasing are asked first; set num_rephrasings=2 or more"
            )
        for name, value in (
            ("advantage_scope", "joint"),
            ("pull_to_original", 0),
            ("dynamic_sampling", 0),
            ("scale_rewards", "group"),
            ("multi_objective_aggregation", "sum_then_normalize"),
        ):
            if (given := getattr(self, name)) != value:
                raise UserError(f"adaptive_rephrasings with {name}={given!r} is not supported; set {name}={value!r}")

    def _check_processes(self) -> None:
        """Refuse processes that have not met: each would train for itself, all into one directory."""
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if self.world_size != launched:
            raise UserError(
                f"{launched} processes were launched, and accelerate has joined {self.world_size} of them; without a "
                "GPU, set ACCELERATE_USE_CPU=true before launching, and use no DeepSpeed or FSDP"
            )

    def _check_pull(self) -> None:
        weight = self.pull_to_original
        if not 0 <= weight < float("inf"):
            raise UserError(f"pull_to_original={weight} must be 0 or more")
        if weight == 0:
            return
        if self.ratio_anchor != "sampled" or self.num_rephrasings == 0:
            raise UserError(
                f"pull_to_original={weight} is for ratio_anchor='sampled' with rephrasings: the other anchors train "
                "every completion under the original question already"
            )
        if self.loss_type not in _TOKEN_NORMALISED_LOSSES:
            usable = " or ".join(map(repr, _TOKEN_NORMALISED_LOSSES))
            raise UserError(
                f"pull_to_original adds rows to a batch, which would change what loss_type={self.loss_type!r} divides "
                f"by; use loss_type={usable}"
            )
        if self.beta != 0:
            raise UserError(
                f"pull_to_original with beta={self.beta} would count the KL term of the added rows twice; set beta=0"
            )

    def _settle_vllm_correction(self) -> None:
        if self.vllm_importance_sampling_correction is None:
            on = not self.scores_under_original
            self.vllm_importance_sampling_correction = on  # pyright: ignore[reportIncompatibleVariableOverride]
            if self.use_vllm and self.scores_under_original:
                logger.warning(
                    "vllm_importance_sampling_correction is off: completions are sampled under rephrasings and "
                    "scored under the original question. Set it to true to have it computed under the prompt that was "
                    "sampled, at the price of one more forward pass."
                )
        if self.use_vllm and self.off_policy_mask_threshold is not None and self._anchors_everything:
            raise UserError(
                "off_policy_mask_threshold with vLLM compares log-probs under the original question with vLLM's under "
                "the rephrasing: with ratio_anchor='original' it would drop the failures of rephrasings because of "
                "their prompt, not because the policy has moved; leave it unset, use ratio_anchor='sampled' or "
                "'importance', or off_prompt_negatives='drop'"
            )
        if self._weighs_kl_across_prompts:
            logger.warning(
                "use_bias_correction_kl multiplies the KL term by the ratio, which with ratio_anchor='importance' is "
                "pi(o|q_0) / pi_old(o|q_n), unclipped: single tokens can weigh much. Set it to false for the plain term"
            )
