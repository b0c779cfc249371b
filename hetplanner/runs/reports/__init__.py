"""What became of a run: against its prediction, how it ended, what it went on without."""
