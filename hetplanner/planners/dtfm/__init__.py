"""DT-FM's objective: candidates (`species`), kernels, certificates of optimality, and the published search (`gcma`)."""
