"""The page of the experiments, made from their results alone.

`python -m benches.report` writes docs/benchmarks.md, its plots and the README's table;
`python -m benches.report --compare A B` tells what changed between two folders of results.

- `cases`: the rows of a folder, grouped into cases, best contender first.
- `words`, `tables`, `plots`: values as text, Markdown and SVG.
- `sections`: what each experiment shows; a case that it does not know becomes a plain table.
- `aims`: what was aimed at beforehand, beside what was measured.
- `planned`: the planner's rates beside the scaling results.
- `summary`, `page`, `documents`: the top of the page; the page; what other pages show of the results.
- `compare`: two results.
"""
