"""Dynamic sampling (DAPO, arXiv 2503.14476): groups without a gradient are replaced by groups of other questions.

A group whose rewards are all alike teaches nothing. With ``dynamic_sampling`` other questions are sampled in the place
of such groups, round after round, until every group of the batch is mixed or the budget of completions is spent; what
is missing then stays uniform. The same for plain groups and for expanded ones. Everything that was sampled is logged
and recorded, also what is thrown away.

The other questions of a generation are drawn without replacement from a permutation of the training set that depends on
the seed and the step alone, so that a resumed run draws them again.

Shapes: B rows of a process, Q questions of a round over all processes, K completions of a group.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..group import uniform_groups
from .measured import MeasuredGRPOTrainer
from .rows import Rows, join_rows, take_rows, trained_tokens

# Where a group stands in the order in which groups are kept: behind all mixed ones.
_UNIFORM = 2**40
_A_ROUND = 2**20


class DynamicSamplingGRPOTrainer(MeasuredGRPOTrainer):
    """``GRPOTrainer`` that can go on sampling until a batch is full of mixed groups."""

    train_dataset: Any
    state: Any
    num_generations: Any
    _metrics: Any
    _logs: Any

    def fill_batch(self, sample: Callable[[list[Rows]], tuple[Rows, Tensor]], inputs: list[Rows]) -> Rows:
        """A scored batch of as many rows as ``inputs``, with the mixed groups of as many rounds as the budget allows.

        Args:
            sample: samples and scores rows of whole groups; returns them, and the (Q * K,) rewards of all processes,
                NaN where there is none.
            inputs: this process's dataset rows, each repeated K times over the processes.
        """
        processes, size = self.accelerator.num_processes, len(inputs)
        batch_groups = size * processes // self.num_generations
        others = self._other_questions(inputs)
        rounds = Rounds(self._metrics["train"])
        batches, mixed, questions = [], 0, inputs
        while True:
            self._forget_logged_rows()  # the logs hold one round, for those who record it
            batch, rewards = sample(questions)
            mixed_Q = ~self._without_gradient(rewards)
            batches.append(batch | {"place": self._places(mixed_Q, len(questions), len(batches))})
            rounds.end(len(mixed_Q))
            mixed += int(mixed_Q.sum())
            wanted = min(batch_groups - mixed, int(self.args.dynamic_sampling * batch_groups) - rounds.groups)
            questions = self._rows_of(list(_first(others, self._even(wanted))))
            if not questions:
                break
        rounds.average()
        filled = self._dealt(batches, size)
        kept = min(mixed, batch_groups)
        self._metrics["train"]["dynamic_sampling/sampled"].append(rounds.groups / batch_groups)
        self._metrics["train"]["dynamic_sampling/thrown_away"].append(1 - batch_groups / rounds.groups)
        self._metrics["train"]["dynamic_sampling/unfilled"].append(1 - kept / batch_groups)
        return filled

    def _without_gradient(self, rewards: Tensor) -> Tensor:
        """(Q,) groups whose rewards are alike wherever they are normalised together."""
        together = self.num_generations
        if self.args.advantage_scope == "per_phrasing":
            together = self.args.generations_per_phrasing
        return uniform_groups(rewards.reshape(-1, together)).reshape(-1, self.num_generations // together).all(dim=1)

    def _other_questions(self, inputs: list[Rows]) -> Iterator[Rows]:
        """Dataset rows that are not in the batch, in an order of this step's own."""
        used = set(gather_object([json.dumps(row["prompt"]) for row in inputs]))
        order = list(range(len(self.train_dataset)))
        random.Random(f"{self.args.seed}/{self.state.global_step}").shuffle(order)
        for i in order:
            row = self.train_dataset[i]
            if json.dumps(row["prompt"]) not in used:
                yield row

    def _even(self, wanted: int) -> int:
        """At least ``wanted`` groups, as many as divide over the processes; 0 if none are wanted."""
        groups = max(wanted, 0)
        while groups * self.num_generations % self.accelerator.num_processes:
            groups += 1
        return groups

    def _rows_of(self, questions: list[Rows]) -> list[Rows]:
        """This process's rows of the questions' groups; none if they do not divide over the processes."""
        if self._even(len(questions)) != len(questions):
            return []
        return self._own([question for question in questions for _ in range(self.num_generations)])

    def _own(self, rows: list[Any]) -> list[Any]:
        """This process's share of the rows of all."""
        local = len(rows) // self.accelerator.num_processes
        return rows[self.accelerator.process_index * local :][:local]

    def _places(self, mixed_Q: Tensor, local_rows: int, round_number: int) -> Tensor:
        """(B,) where each row's group stands: mixed ones first, earlier rounds first, groups in one piece."""
        groups_Q = torch.arange(len(mixed_Q), device=mixed_Q.device) + round_number * _A_ROUND
        places = torch.where(mixed_Q, groups_Q, groups_Q + _UNIFORM).repeat_interleave(self.num_generations)
        return places[self.accelerator.process_index * local_rows :][:local_rows].to(self.accelerator.device)

    def _dealt(self, batches: list[Rows], size: int) -> Rows:
        """The first groups of all processes and rounds, ``size`` rows for this process."""
        pad_token_id = self._tokenizer.pad_token_id
        rows = join_rows(batches, pad_token_id)
        first = 0
        if self.accelerator.num_processes > 1:
            on_cpu = {name: value.cpu() if isinstance(value, Tensor) else value for name, value in rows.items()}
            rows = join_rows(gather_object([on_cpu]), pad_token_id)
            first = self.accelerator.process_index * size
        order = torch.sort(rows.pop("place"), stable=True).indices
        device = self.accelerator.device
        chosen = take_rows(rows, order[: size * self.accelerator.num_processes])
        tokens = trained_tokens(chosen).sum()
        rows = take_rows(chosen, slice(first, first + size)) | {"num_items_in_batch": tokens}
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in rows.items()}

    def _forget_logged_rows(self) -> None:
        for column in self._logged_columns():
            column.clear()

    def _logged_columns(self) -> Iterator[Any]:
        logs = self._logs
        yield from (logs["prompt"], logs["completion"], logs["advantages"])
        yield from logs["rewards"].values()
        yield from logs["extra"].values()


class Rounds:
    """Makes one figure of those that the rounds of a batch have appended to each metric, weighted by their groups."""

    def __init__(self, metrics: dict[str, list[float]]) -> None:
        self._metrics = metrics
        self._begin = {name: len(values) for name, values in metrics.items()}
        self._ends: list[tuple[int, dict[str, int]]] = []

    @property
    def groups(self) -> int:
        return sum(groups for groups, _ in self._ends)

    def end(self, groups: int) -> None:
        """A round of so many groups is over."""
        self._ends.append((groups, {name: len(values) for name, values in self._metrics.items()}))

    def average(self) -> None:
        if len(self._ends) == 1:
            return
        for name, values in self._metrics.items():
            begin, weighted = self._begin.get(name, 0), []
            for groups, ends in self._ends:
                end = ends.get(name, begin)
                weighted += [(value, groups) for value in values[begin:end] if value == value]
                begin = end
            if weighted:
                mean = sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)
                values[self._begin.get(name, 0) : begin] = [mean]


def _first(rows: Iterator[Rows], count: int) -> Iterator[Rows]:
    for _ in range(count):
        if (row := next(rows, None)) is None:
            return
        yield row
