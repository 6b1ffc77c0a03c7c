"""The radix reducers: quantizer, scales, exchanges and the pipeline; the rest of the package uses only the reducers."""
