"""Controls: the arms of an experiment, run one after another, with their budgets, compared over seeds and problems.

arms.py         what each arm differs in
experiment.py   an experiment's settings; one arm with one seed, from training to its result file
results.py      results of arms and seeds, budgets, pass@k and paired differences along the chain of controls
"""
