"""Models as OP-DAGs with their cost, and the batch they are trained on."""
