"""Commands about runs: train, runs, peer."""
