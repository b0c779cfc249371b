"""Figures of a run: curves over steps, life, memory, hosts."""
