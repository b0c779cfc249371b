"""What runs on a host of a run: facts, the node process, its keeper. Imports little."""
