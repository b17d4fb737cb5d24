"""A GRPO trainer that a kill does not change: a resumed run sees the questions, and ends with the weights, of an
unbroken one.

Stock TRL 1.16 differs in four ways, each mended here: a new process draws epoch 1's order again whatever the epoch;
checkpoints may fall between two updates on the same generations, which are not saved; a checkpoint killed while it is
written counts as the newest; and rotation can delete the last good one before the new one is whole.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]
from trl.trainer.utils import RepeatSampler

from ..errors import UserError
from ..rundir import COMPLETE_MARK, checkpoint_dirs, is_complete, last_complete_checkpoint, read_json, read_jsonl

logger = logging.getLogger(__name__)


class EpochSeededRepeatSampler(RepeatSampler):
    """TRL's ``RepeatSampler`` whose order depends on the epoch alone, not on how many epochs this process has drawn.

    Epoch e uses the (e + 1)-th permutation of the seeded generator, so the orders are stock TRL's.
    """

    def set_epoch(self, epoch: int) -> None:
        if self.shuffle:
            self.generator = torch.Generator()
            if self.seed is not None:
                self.generator.manual_seed(self.seed)
            for _ in range(epoch):
                torch.randperm(self.num_samples, generator=self.generator)


class ResumableGRPOTrainer(GRPOTrainer):
    """``GRPOTrainer`` with exact resume. Nothing else changes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(_EpochOrder(self))
        self.add_callback(_SaveAtGenerationBoundaries(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As TRL's; ``resume_from_checkpoint=True`` takes the newest *complete* checkpoint of ``output_dir``.

        Raises:
            UserError: True was asked for and there is no complete checkpoint.
        """
        if resume_from_checkpoint is True:
            checkpoint = last_complete_checkpoint(str(self.args.output_dir))
            if checkpoint is None:
                raise UserError(
                    f"{self.args.output_dir} holds no complete checkpoint to resume from; start without resume"
                )
            resume_from_checkpoint = str(checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler:
        stock: Any = super()._get_train_sampler(dataset)
        self._train_sampler = EpochSeededRepeatSampler(
            data_source=stock.data_source,
            mini_repeat_count=stock.mini_repeat_count,
            batch_size=stock.batch_size,
            repeat_count=stock.repeat_count,
            shuffle=stock.shuffle,
            seed=stock.seed,
        )
        return self._train_sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run_dir = self._get_output_dir(trial=trial)
        mark = Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}" / COMPLETE_MARK
        if self.args.should_save:
            mark.unlink(missing_ok=True)
        # Rotation waits until the new checkpoint carries its mark.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RuntimeError) and "inline_container" not in str(error):  # torch's writer of files
                raise
            number = getattr(error, "errno", None) or errno.ENOSPC  # the writers of tensors tell no number
            reason = f"cannot be written: the disk is full, it seems ({_first_line(error)})"
            raise OSError(number, getattr(error, "strerror", None) or reason, str(mark.parent)) from error
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            mark.touch()
            rotate_checkpoints(
                output_dir=run_dir,
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )


class _EpochOrder(TrainerCallback):
    def __init__(self, trainer: ResumableGRPOTrainer) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        sampler = getattr(self.trainer, "_train_sampler", None)  # an iterable dataset has none
        if sampler is not None:
            sampler.set_epoch(int(state.epoch or 0))


class _SaveAtGenerationBoundaries(TrainerCallback):
    """Put a save off until the buffered generations are used up; they are not part of a checkpoint."""

    def __init__(self, trainer: ResumableGRPOTrainer) -> None:
        self.trainer = trainer
        self.pending = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.pending |= control.should_save
        generate_every = args.steps_per_generation * self.trainer.num_iterations
        at_boundary = self.trainer._step % generate_every == 0 or state.global_step >= state.max_steps
        control.should_save = self.pending and at_boundary
        if control.should_save:
            self.pending = False


def check_checkpoint(checkpoint: Path, metrics: Path) -> None:
    """Refuse a checkpoint with a damaged file before anything is loaded from it.

    Of torch's files every byte is checked, since they hold check sums; of weights in safetensors only the head and the
    length, since they hold none.

    Raises:
        UserError: naming the file; or ``metrics``, if it lacks a step that the checkpoint's trainer has logged.
    """
    for path in sorted(checkpoint.iterdir()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            elif path.suffix in (".pt", ".pth", ".bin") and (damaged := zipfile.ZipFile(path).testzip()):
                raise ValueError(f"its record {damaged} is not what was written")
        except (OSError, ValueError, zipfile.BadZipFile, SafetensorError) as error:
            raise UserError(
                f"{path} is damaged ({_first_line(error)}); restore it, or remove {checkpoint} to go on from the "
                "checkpoint before it"
            ) from None
    state = checkpoint / "trainer_state.json"
    logged = read_json(state).get("log_history") or [] if state.exists() else []
    there = {line["step"] for line in read_jsonl(metrics, {"step": int})}
    if absent := sorted({entry["step"] for entry in logged} - there):
        raise UserError(f"{metrics} lacks step {absent[0]}, which was trained; restore it, or start anew elsewhere")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def remove_incomplete_checkpoints(run_dir: str | Path) -> list[Path]:
    """Delete checkpoints that a kill left half written; returns what was deleted."""
    incomplete = [path for path in checkpoint_dirs(run_dir) if not is_complete(path)]
    for path in incomplete:
        logger.warning("%s was not written to its end and is removed", path)
        shutil.rmtree(path)
    return incomplete
