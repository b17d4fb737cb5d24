"""TA-GRPO with verl: a plug-in for its rollout, a reward, the export of questions and a launcher.

verl's trainer runs as it is. Our agent loop samples a completion from a rephrasing q_n and hands it back with the
original question's prompt, so that verl computes every log-prob under q_0 and normalises a question's completions
together. Needs the extra ``verl`` in an environment of its own.

Importing this package is cheap: neither verl, ray nor torch is loaded.
"""

# verl takes a row's agent loop from its column `agent_name`.
TRAINING_LOOP = "ta_grpo"
VALIDATION_LOOP = "single_turn_agent"
