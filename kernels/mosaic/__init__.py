"""The ops as Pallas Mosaic kernels for NVIDIA GPUs."""
