"""Lower bounds of a step, valid for every plan of a problem."""
