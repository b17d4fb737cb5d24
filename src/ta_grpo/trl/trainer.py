"""TA-GRPO as a small change to TRL's ``GRPOTrainer``.

An expanded group is one question with K = (N + 1) * G completions, in which the sampling step swaps the prompt:

- the dataset row is the question; TRL repeats it K times and normalises the K rewards together (joint advantages);
- slot i of the group is sampled from phrasing (i // G): only ``_generate_single_turn`` sees that prompt;
- so old, reference and current log-probs are all taken under the original question q_0 (the anchored ratio).

Everything else here is the ablations' few lines and checks. ``_generate_and_score_completions``,
``_generate_single_turn`` and ``_calculate_rewards`` are private in TRL 1.16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from ..errors import UserError
from ..group import drop_off_prompt_negatives, phrasing_of_slot
from ..paper import ARXIV_ID, BIBTEX, TITLE
from .adaptive import AdaptivePhrasingsGRPOTrainer
from .checks import check_question, check_tokenised_prompt, check_train_dataset
from .config import TAGRPOConfig
from .metrics import weighted_rewards
from .pull import append_pulled_rows, pulled_rows


class TAGRPOTrainer(AdaptivePhrasingsGRPOTrainer):
    """``GRPOTrainer`` on expanded groups.

    Takes what ``GRPOTrainer`` takes. ``args`` is a ``TAGRPOConfig``, and each training row has a column
    ``rephrasings``: a list of prompts of the same type as ``prompt`` (text, or messages) with the same answer. A row
    with M < N rephrasings has its blocks of G dealt round its M + 1 phrasings; of more than N the first N are used.
    Reward functions receive two more columns: ``phrasing_index`` (0 is the original) and ``sampled_prompt``.
    ``evaluate()`` samples the original question only. With ``num_rephrasings=0`` this is stock GRPO, bit by
    bit if ``compact_passes`` is off.

    ``on_rollouts``, if set, is called after each training generation with this trainer, when its ``_logs`` hold the
    whole generation batch.

    Raises:
        UserError: a dataset or setting that cannot work, with the fix.
    """

    _tag_names = ["trl", "ta-grpo"]  # noqa: RUF012 - TRL's own form
    _name = "TA-GRPO"
    _paper = {"title": TITLE, "id": ARXIV_ID, "citation": BIBTEX}  # noqa: RUF012

    # TRL types these more widely than they are here.
    args: TAGRPOConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: TAGRPOConfig | None = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, TAGRPOConfig):
            raise UserError(f"args is {type(args).__name__}; TAGRPOTrainer needs a ta_grpo.trl.TAGRPOConfig")
        if args.num_rephrasings > 0:
            refused = [name for name in ("tools", "rollout_func", "environment_factory") if kwargs.get(name)]
            if refused:
                raise UserError(f"{', '.join(refused)}: not supported with rephrasings; set num_rephrasings=0")
        if isinstance(train_dataset, Dataset):
            check_train_dataset(train_dataset, args)
        self._sampled_prompt_ids: list[list[int]] | None = None
        self._rewards_per_func = torch.empty(0)
        self.on_rollouts: Callable[[TAGRPOTrainer], None] | None = None
        super().__init__(model, reward_funcs, args, train_dataset, **kwargs)
        if isinstance(train_dataset, Dataset):
            check_tokenised_prompt(train_dataset[0]["prompt"], self._tokenizer, self._tokenize_prompts)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if "rephrasings" not in self._signature_columns:
            self._signature_columns.append("rephrasings")

    # Sampling: the method's one step that sees a rephrasing.

    def _deal_phrasings(self, rows: list[dict[str, Any]], slots: Iterable[int]) -> tuple[list[dict[str, Any]], Tensor]:
        """Give each row the prompt that its slot of the group samples from.

        Returns:
            the rows with the columns ``phrasing_index`` and ``sampled_prompt``, and (B, 2) phrasing index and number
            of phrasings the question has.
        """
        size = self.num_phrasings * self.args.generations_per_phrasing
        dealt, phrasings = [], []
        for slot, row in zip(slots, rows, strict=True):
            prompts = [row["prompt"], *(row.get("rephrasings") or [])][: self.num_phrasings]
            index = phrasing_of_slot(slot, size, self.num_phrasings, len(prompts))
            dealt.append(row | {"phrasing_index": index, "sampled_prompt": prompts[index]})
            phrasings.append((index, len(prompts)))
        return dealt, torch.tensor(phrasings, device=self.accelerator.device)

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> Any:
        if self._sampled_prompt_ids is not None:
            # The only place where q_n is seen. G, not K: vLLM's server mode takes every num_generations-th prompt.
            prompt_ids, num_generations = self._sampled_prompt_ids, self.args.generations_per_phrasing
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            originals = [row | {"phrasing_index": 0, "sampled_prompt": row["prompt"]} for row in inputs]
            return super()._generate_and_score_completions(originals)
        if self.args.adaptive_rephrasings:
            output = self.spread_phrasings(self._sample_blocks, inputs)
            self._show_rollouts()
            return output
        if self.args.dynamic_sampling > 0:
            return self.fill_batch(self._sample_groups, inputs)
        return self._sample_groups(inputs)[0]

    def _sample_groups(self, inputs: list[dict[str, Any]]) -> tuple[dict[str, Any], Tensor]:
        """Sample and score whole groups: rows for TRL's loss, and the (Q * K,) rewards over all processes."""
        first_row = self.accelerator.process_index * len(inputs)
        slots = range(first_row, first_row + len(inputs))
        scope = self.num_generations
        if self.args.advantage_scope == "per_phrasing":
            scope = self.args.generations_per_phrasing
        output, phrasings_B2, rewards = self._sample(inputs, slots, scope)
        all_phrasings = self.accelerator.gather(phrasings_B2)
        if self.args.off_prompt_negatives == "drop":
            output["advantages"] = drop_off_prompt_negatives(output["advantages"], phrasings_B2[:, 0])
            self._correct_logged_advantages(all_phrasings[:, 0])
        if self.args.pull_to_original > 0:
            output = self._pull_to_original(output, inputs)
        self._log_signal(rewards, all_phrasings)
        self._show_rollouts()
        return output, rewards

    def _sample_blocks(self, inputs: list[dict[str, Any]], slots: list[int]) -> tuple[dict[str, Any], Tensor]:
        """The same in blocks of G, for these slots of their groups."""
        output, _, rewards = self._sample(inputs, slots, self.args.generations_per_phrasing)
        return output, rewards

    def _sample(
        self, inputs: list[dict[str, Any]], slots: Iterable[int], scope: int
    ) -> tuple[dict[str, Any], Tensor, Tensor]:
        """Sample and score rows, ``scope`` of them normalised together.

        Returns:
            rows for TRL's loss, their (B, 2) phrasing index and number of phrasings, and the rewards of all processes.
        """
        if self.num_phrasings > 1 and not isinstance(self.train_dataset, Dataset):
            for row in inputs:
                check_question(row, where="a row of the training stream")
        rows, phrasings_B2 = self._deal_phrasings(inputs, slots)
        for column in ("id", "phrasing_index", "sampled_prompt"):
            if column in rows[0]:
                self._log_completion_extra(column, [row[column] for row in rows])
        sampled = None
        if self.num_phrasings > 1:
            sampled, _, _ = self._tokenize_prompts([row["sampled_prompt"] for row in rows])
            if self.args.ratio_anchor == "sampled":
                rows = [row | {"prompt": row["sampled_prompt"]} for row in rows]
        self._sampled_prompt_ids = sampled
        try:
            with (
                self._normalised_over(scope),
                self.old_pass_under(sampled if self.args.corrects_across_prompts else None),
            ):
                output = super()._generate_and_score_completions(rows)
        finally:
            self._sampled_prompt_ids = None

        output["phrasing_index"] = phrasings_B2[:, 0]
        if sampled is not None:
            self._anchor_old_logps(output, sampled)
        if self.num_phrasings > 1 and "importance_sampling_ratio" in output:
            self._log_kept(output)
        return output, phrasings_B2, weighted_rewards(self._rewards_per_func, self.reward_weights)

    def _show_rollouts(self) -> None:
        if self.on_rollouts is not None:
            self.on_rollouts(self)

    # Advantages: joint ones are TRL's own, since a group is one dataset row.

    @contextmanager
    def _normalised_over(self, scope: int) -> Iterator[None]:
        """Normalise over so many rows while in here, instead of over whole groups."""
        group_size, self.num_generations = self.num_generations, scope
        try:
            yield
        finally:
            self.num_generations = group_size

    def _correct_logged_advantages(self, phrasing_B: Tensor) -> None:
        """Make the logged advantages of this generation batch (all processes) the ones that are used."""
        logged = self._logs["advantages"]
        used = [logged.pop() for _ in range(len(phrasing_B))][::-1]
        logged.extend(drop_off_prompt_negatives(torch.tensor(used), phrasing_B.cpu()).tolist())

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        if self.model.training:
            # As TRL tells them for its own metrics: a completion ends with one of these, unless it was cut.
            ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
            self._log_completion_extra("completion_tokens", [len(ids) for ids in completion_ids_list])
            self._log_completion_extra("completion_truncated", [ids[-1] not in ends for ids in completion_ids_list])
        self._rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards_per_func

    # The prompt of pi_old: q_0's is TRL's own, unless the correction for vLLM has asked for q_n's.

    def _anchor_old_logps(self, output: dict[str, Any], sampled: list[list[int]]) -> None:
        """Make ``old_per_token_logps`` those of the prompt that ``ratio_anchor`` names."""
        corrected, anchor = self.args.corrects_across_prompts, self.args.ratio_anchor
        if anchor == "importance" and not corrected:
            output["old_per_token_logps"] = self.logps_under(*self.padded_prompts(sampled), output)
        elif anchor == "original" and corrected:
            if self.args.has_one_update_a_generation:  # the ratio is 1 by construction, as in TRL without vLLM
                del output["old_per_token_logps"]
            else:
                old_BT = self.logps_under(output["prompt_ids"], output["prompt_mask"], output)
                output["old_per_token_logps"] = old_BT

    def _pull_to_original(self, output: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Our extension: train off-prompt completions with a positive advantage once more, under q_0."""
        originals, _, _ = self._tokenize_prompts([row["prompt"] for row in rows])
        under_original: dict[str, Tensor] = dict(
            zip(("prompt_ids", "prompt_mask"), self.padded_prompts(originals), strict=True)
        )
        if "old_per_token_logps" in output:
            under_original["old_per_token_logps"] = self.logps_under(
                under_original["prompt_ids"], under_original["prompt_mask"], output
            )
        phrasings_B = output["phrasing_index"]
        output = append_pulled_rows(
            output,
            under_original,
            self.args.pull_to_original,
            self._tokenizer.pad_token_id,
            multiple=self.args.steps_per_generation or 1,
            at_least=int(self.accelerator.gather(phrasings_B.new_tensor([len(pulled_rows(output))])).max()),
        )
        tokens_B = output["completion_mask"].sum(dim=1)
        tokens = torch.stack([tokens_B[len(rows) :].sum(), tokens_B[: len(rows)].sum()])
        pulled, sampled = self.accelerator.reduce(tokens, reduction="sum").tolist()
        self._metrics["train"]["completions/pulled_share"].append(pulled / sampled)
        return output
