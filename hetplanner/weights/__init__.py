"""Model folders of Hugging Face, without torch: headers, names, and whether they fit a workload. Begin with `check`.

Tensors are read by `hetplanner.runtime.model.pretrained` and written by `hetplanner.runtime.checkpoint.export`. It may
import what `hetplanner.data` may.
"""
