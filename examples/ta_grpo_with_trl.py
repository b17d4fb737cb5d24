"""The same with TA-GRPO: two names, one column, one setting."""

import sys

from datasets import Dataset

from ta_grpo.tiny import POLICY_DIR, questions
from ta_grpo.trl import TAGRPOConfig, TAGRPOTrainer
from ta_grpo.verifier import accuracy_reward

rows = [
    {
        "prompt": [{"role": "user", "content": question.question}],
        "answer": question.answer,
        "rephrasings": [[{"role": "user", "content": text}] for text in question.rephrasings],
    }
    for question in questions("train")[:16]
]
args = TAGRPOConfig(
    output_dir=sys.argv[1],
    num_rephrasings=3,
    num_generations=16,
    per_device_train_batch_size=16,
    max_completion_length=40,
    max_steps=2,
    bf16=False,
    use_cpu=True,
)
trainer = TAGRPOTrainer(str(POLICY_DIR), accuracy_reward, args, train_dataset=Dataset.from_list(rows))
trainer.train()
