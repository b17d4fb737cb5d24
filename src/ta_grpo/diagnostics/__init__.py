"""What rephrasing does to the training signal of a run's checkpoints, measured on a fixed set of questions.

    RUN/diagnostics/checkpoint-N/samples.jsonl   completions with verdicts and log-probs, a line each
    RUN/diagnostics/checkpoint-N/figures.json    what they come to
    RUN/diagnostics.json                         all checkpoints, and the findings

Every question is asked (N + 1) * G times as it is, and G times in each of its N rephrasings, so that the joint group of
(N + 1) * G completions can be held against as many under the original question alone.
"""
