"""The agent loop: a completion is sampled from a phrasing of the question and handed back with the original's prompt.

verl loads this module in each of its processes, through the entry-point group ``verl.plugins``, and finds the loop by
its name. The settings are those that the launcher puts into verl's configuration under ``ta_grpo``.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput, SingleTurnAgentLoop
from verl.experimental.agent_loop.agent_loop import register

from ..errors import UserError
from ..group import phrasing_of_slot
from . import TRAINING_LOOP


@register(TRAINING_LOOP)
class TAGRPOAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop, asked with a phrasing of the question.

    Of a question's ``rollout.n`` = (N + 1) * G completions, verl numbers each with a ``session_id``; it decides the
    phrasing, ``group.phrasing_of_slot``. The rephrasings are message lists in the row's ``extra_info``.

    With ``ratio_anchor=original`` the output's prompt is q_0's: verl computes the old, the current and the reference
    log-probs under it. The engine's own log-probs are q_n's and are left out. With ``sampled`` the output is as verl's
    loop made it, so that all log-probs are q_n's.
    """

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        settings = self.config.ta_grpo
        messages = [message_list(kwargs["raw_prompt"]), *map(message_list, rephrasings_of(kwargs))]
        available = min(len(messages), settings.num_rephrasings + 1)
        phrasing = phrasing_of_slot(
            session_of(kwargs), self.rollout_config.n, settings.num_rephrasings + 1, available=available
        )
        # Without a limit of its own, an engine gives what the prompt leaves of the context: more to a shorter phrasing.
        limits = {"max_tokens": self.rollout_config.response_length}
        output = await super().run({**limits, **sampling_params}, **(kwargs | {"raw_prompt": messages[phrasing]}))
        if settings.ratio_anchor == "original":
            output.response_logprobs = None
            if phrasing > 0:
                output.prompt_ids = await self.ct_build_initial_tokens(messages[0])
        # For the trainer's figures and records.
        output.extra_fields |= {
            "phrasing_index": phrasing,
            "phrasings_available": available,
            "question_id": kwargs["extra_info"].get("id"),
            "prompt": messages[0][-1]["content"],
            "sampled_prompt": messages[phrasing][-1]["content"],
        }
        return output


def session_of(row: dict[str, Any]) -> int:
    """The number of a completion in its group.

    Raises:
        UserError: verl's trainer does not tell it.
    """
    if "session_id" not in row:
        raise UserError(
            "verl does not tell the agent loop which of a question's completions it is (no `session_id`): this is so "
            "with the legacy trainer; set trainer.use_v1=True"
        )
    return int(row["session_id"])


def rephrasings_of(row: dict[str, Any]) -> list[Any]:
    """The rephrasings of a row, each a message list.

    Raises:
        UserError: the row has no place for them.
    """
    extra_info = row.get("extra_info") or {}
    if "rephrasings" not in extra_info:
        raise UserError(
            "a row of data.train_files has no extra_info.rephrasings; make the file with `ta-grpo export`, and give "
            "validation rows agent_name=single_turn_agent"
        )
    return list(extra_info["rephrasings"] or ())


def message_list(messages: Any) -> list[dict[str, Any]]:
    """Messages as the chat template takes them, whatever sequence they travelled in."""
    return [dict(message) for message in messages]
