"""Which one change would make a problem feasible, or shorten a step that reductions bind."""
