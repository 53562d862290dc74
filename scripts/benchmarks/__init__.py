"""What `scripts/bench.py` measures: problems with trusted answers, ways to solve them, and the rows that set two ways side by side."""
