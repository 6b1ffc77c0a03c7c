"""Any source of labelled images to one format on disk, which training reads at random and without TensorFlow."""
