"""GRPO with TRL, as a script that has nothing to do with this package but its questions and its reward."""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from ta_grpo.tiny import POLICY_DIR, questions
from ta_grpo.verifier import accuracy_reward

rows = [
    {
        "prompt": [{"role": "user", "content": question.question}],
        "answer": question.answer,
    }
    for question in questions("train")[:16]
]
args = GRPOConfig(
    output_dir=sys.argv[1],
    num_generations=16,
    per_device_train_batch_size=16,
    max_completion_length=40,
    max_steps=2,
    bf16=False,
    use_cpu=True,
)
trainer = GRPOTrainer(str(POLICY_DIR), accuracy_reward, args, train_dataset=Dataset.from_list(rows))
trainer.train()
