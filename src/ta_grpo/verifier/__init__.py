r"""Is a final answer right? For rewards in training (TRL's signature) and for evaluation.

What counts as the answer, and when two answers are the same, is written in ``extract`` and ``compare``. The algebra is
math-verify's. It runs in worker processes with a deadline, because a model can write an answer that no computer
finishes (``9^{9^{9^9}}``).

Importing this package is cheap: neither sympy, math-verify nor torch is loaded.
"""

from ta_grpo.verifier.extract import extract_answer
from ta_grpo.verifier.pool import WorkerStatus, close_workers, worker_status
from ta_grpo.verifier.references import checkable, with_checkable_answers
from ta_grpo.verifier.reward import accuracy_reward
from ta_grpo.verifier.verdict import NOT_APPLICABLE, OUTCOMES, Verdict, verify, verify_many

__all__ = [
    "NOT_APPLICABLE",
    "OUTCOMES",
    "Verdict",
    "WorkerStatus",
    "accuracy_reward",
    "checkable",
    "close_workers",
    "extract_answer",
    "verify",
    "verify_many",
    "with_checkable_answers",
    "worker_status",
]
