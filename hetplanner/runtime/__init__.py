"""The executor of static plans: one process a rank. Begin with `worker`, then `session`; `launch` starts ranks.

`model` is a stage's tensors; `comm` all that ranks send each other; `train` the steps; `checkpoint` files of weights;
`measure` profiles, the prediction and telemetry. torch is imported here; no package below imports this one.
"""
