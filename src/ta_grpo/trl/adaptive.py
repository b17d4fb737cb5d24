"""An adaptive phrasing budget (ours, off by default): a group asks for another phrasing only while it needs one.

With ``adaptive_rephrasings`` a question is first sampled under q_0 and one rephrasing, G completions of each. Once its
rewards differ, its group ends, and the completions that it has not used begin groups of other questions. While they are
alike, the group goes on to its next rephrasing, up to all P phrasings. A generation batch has as many completions as
without: P blocks of G for each of its Q questions, sampled in rounds (``next_blocks``). None is thrown away.

What it does to the joint normalisation. A group that ends with n completions, c of them right (rewards 0 and 1), is
normalised over those n, eps left out:

    A+ = (n - c) / (n s),   A- = -c / (n s),   s^2 = c (n - c) / (n (n - 1))

- The advantages of a group add up to 0, as ever.
- When a group ends depends on its rewards, and on nothing else in its texts. So, given the rewards, a right completion
  of phrasing j still has the mean score grad p_j / p_j, and a wrong one -grad p_j / (1 - p_j), where p_j is the
  phrasing's success rate under its own prompt. With c_j of phrasing j's G completions right,

      E[sum_k A_k grad log pi(o_k)] = sum_j grad p_j E[c_j A+ / p_j - (G - c_j) A- / (1 - p_j)]

  where a phrasing that is not asked counts 0. Both terms are at least 0: ending early changes how much a question and a
  phrasing weigh, never the sign. Under the anchored ratio the scores are those under q_0, and the argument is the same.
- A group weighs sum_k |A_k| = 2 sqrt(c (n - c) (n - 1) / n): in proportion to n at the same share of right ones. One
  that ends after two blocks of four weighs half of what it did; its other half goes to other questions.
- Phrasings 2 to N are asked of stubborn questions only: their mean rewards (``reward/phrasing_2`` ...) are lower than
  over all questions, and of the completions that are trained fewer are off-prompt.

Shapes: Q questions of the batch, K = P * G completions of a full group, R groups that were begun.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import pvariance
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..group import drop_off_prompt_negatives, joint_advantages, phrasing_of_slot, variance_share_between_phrasings
from .dynamic_sampling import DynamicSamplingGRPOTrainer, Rounds
from .rows import Rows

_FIRST_BLOCKS = 2


@dataclass(eq=False)
class AdaptiveGroup:
    """A question and the rewards of the blocks that were sampled for it, G each; NaN where there is none."""

    question: Rows
    most_blocks: int
    blocks: list[list[float]] = field(default_factory=list)

    @property
    def spread(self) -> float:
        """Variance of the rewards there are; 0 of a uniform group."""
        scored = [reward for block in self.blocks for reward in block if not math.isnan(reward)]
        return pvariance(scored) if scored and min(scored) < max(scored) else 0.0

    @property
    def room(self) -> int:
        return self.most_blocks - len(self.blocks)

    @property
    def wants(self) -> int:
        """Blocks of the next round: the first two, and one more while the rewards are alike."""
        if len(self.blocks) < _FIRST_BLOCKS:
            return _FIRST_BLOCKS - len(self.blocks)
        return min(self.room, 1) if self.spread == 0 else 0


def next_blocks(groups: list[AdaptiveGroup], new: Iterator[AdaptiveGroup], left: int, multiple: int = 1) -> list[int]:
    """Whose block is sampled in the next round: places in ``groups``, one for each block.

    Groups that want more come first. What they could not use up even with all their phrasings begins new groups, two
    blocks each. What is left when there is nothing to begin goes to the groups whose rewards differ least.

    Args:
        groups: those begun, in order; new ones are appended.
        new: groups of other questions.
        left: blocks of the budget, at most the room of all groups; a multiple of ``multiple``.
        multiple: blocks are sampled in multiples of so many, so that all processes have as many rows.
    """
    reserved = sum(group.room for group in groups if group.wants)
    groups += islice(new, max(left - reserved, 0) // _FIRST_BLOCKS)
    chosen = [place for place, group in enumerate(groups) for _ in range(group.wants)][:left]
    wanted = -(-len(chosen) // multiple) * multiple if chosen else left
    taken = Counter(chosen)
    for place in sorted(range(len(groups)), key=lambda place: groups[place].spread):
        spare = min(groups[place].room - taken[place], wanted - len(chosen))
        chosen += [place] * spare
    return chosen


class AdaptivePhrasingsGRPOTrainer(DynamicSamplingGRPOTrainer):
    """``GRPOTrainer`` that can spend a generation batch on phrasings where they are needed."""

    def spread_phrasings(
        self, sample: Callable[[list[Rows], list[int]], tuple[Rows, Tensor]], inputs: list[Rows]
    ) -> Rows:
        """A scored batch of as many rows as ``inputs``, in joint groups of different sizes.

        Args:
            sample: samples and scores rows for these slots of their groups, in blocks of G; returns them, and the
                rewards of all processes, NaN where there is none.
            inputs: this process's dataset rows, each repeated K times over the processes.
        """
        size, phrasings = self.num_generations, self.args.num_phrasings
        per_block, processes = self.args.generations_per_phrasing, self.accelerator.num_processes
        first = gather_object(inputs)[::size]
        groups = [AdaptiveGroup(row, phrasings) for row in first]
        others = (AdaptiveGroup(row, phrasings) for row in self._other_questions(inputs))
        rounds, batches, places, left = Rounds(self._metrics["train"]), [], [], len(first) * phrasings
        self._forget_logged_rows()
        while left > 0:
            chosen = next_blocks(groups, others, left, processes // math.gcd(processes, per_block))
            begun: Counter[int] = Counter()
            slots: list[tuple[int, int]] = []
            for place in chosen:
                block = len(groups[place].blocks) + begun[place]
                begun[place] += 1
                slots += [(place, block * per_block + i) for i in range(per_block)]
            own = self._own(slots)
            batch, rewards = sample([groups[place].question for place, _ in own], [slot for _, slot in own])
            for place, block in zip(chosen, rewards.reshape(-1, per_block).tolist(), strict=True):
                groups[place].blocks.append(block)
            batches.append(batch | {"place": self._tensor([place * size + slot for place, slot in own])})
            places += [place * size + slot for place, slot in slots]
            rounds.end(len(chosen))
            left -= len(chosen)
        rounds.average()
        advantages = self._advantages_of(groups)
        for batch in batches:
            batch["advantages"] = advantages[batch["place"]]
        self._log_in_groups(places, advantages[places].tolist())
        self._metrics["train"]["adaptive_rephrasings/questions"].append(len(groups) / len(first))
        return self._dealt(batches, len(inputs))

    def _log_in_groups(self, places: list[int], advantages: list[float]) -> None:
        """Put the logged rows, which are in order of rounds, in order of their places, with these advantages."""
        self._logs["advantages"].clear()
        self._logs["advantages"].extend(advantages)
        order = sorted(range(len(places)), key=places.__getitem__)
        for column in self._logged_columns():
            rows = list(column)
            column.clear()
            column.extend(rows[i] for i in order)

    def _advantages_of(self, groups: list[AdaptiveGroup]) -> Tensor:
        """(R * K,) joint advantages as they are used, 0 in slots that were not sampled; logs the groups' signal."""
        size, phrasings = self.num_generations, self.args.num_phrasings
        per_block = self.args.generations_per_phrasing
        rewards_RK = torch.full((len(groups), size), torch.nan, device=self.accelerator.device)
        available = []
        for row_K, group in zip(rewards_RK, groups, strict=True):
            scored = list(chain.from_iterable(group.blocks))
            row_K[: len(scored)] = self._tensor(scored)
            available.append(min(1 + len(group.question.get("rephrasings") or []), phrasings))
        phrasing = [phrasing_of_slot(slot, size, phrasings, count) for count in available for slot in range(size)]
        phrasing_B, available_B = self._tensor(phrasing), self._tensor(available).repeat_interleave(size)
        self._log_signal(rewards_RK.flatten(), torch.stack([phrasing_B, available_B], dim=1))
        # Of the phrasings that every question was asked under: the others are those of stubborn questions.
        compared_RPG = rewards_RK.reshape(-1, phrasings, per_block)[self._tensor(available) > 1, :_FIRST_BLOCKS]
        between = self._metrics["train"]["reward/variance_between_phrasings"]
        between[-1] = variance_share_between_phrasings(compared_RPG)
        advantages_B = joint_advantages(rewards_RK).flatten()
        if self.args.off_prompt_negatives == "drop":
            advantages_B = drop_off_prompt_negatives(advantages_B, phrasing_B)
        return advantages_B

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, device=self.accelerator.device)
