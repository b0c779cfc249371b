"""The objective step time: tables (`space`), candidates (`species`), kernels, the whole search (`plan`), the front."""
