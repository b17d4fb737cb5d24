"""The paper whose method this is, for citations."""

TITLE = "Transformation-Augmented GRPO for Enhancing Exploration in Reasoning of Large Language Models"
ARXIV_ID = "2601.22478"
BIBTEX = f"""\
@misc{{tagrpo2026,
    title         = {{{{{TITLE}}}}},
    year          = 2026,
    eprint        = {{{ARXIV_ID}}},
    archivePrefix = {{arXiv}},
}}"""
