"""The page that shows a run or an experiment: findings, figures, budgets, rollouts, settings.

settings.py   what is asked for
reading.py    run directories and experiments, read and nothing else
training.py   curves over the steps of training
rollouts.py   which rollouts are shown, and the data that the browser in the page reads
drawing.py    figures as PNG and SVG, and SVG made fit to stand in a page
figures.py    what each figure shows
tables.py     budgets, settings, versions
findings.py   the sentences at the head
page.py       the HTML file
assets/       template, style, script; Temml, which turns LaTeX into MathML
"""
