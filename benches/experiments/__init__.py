"""The experiments: `python -m benches.experiments`. Each module has `run(bench)`."""
