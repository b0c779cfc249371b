"""Lower bounds from counts: how many devices of each class of near ones every stage takes."""
