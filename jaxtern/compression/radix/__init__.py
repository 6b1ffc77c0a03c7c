"""The radix reducer: quantizer, scales, exchanges and the pipeline, none of it visible outside but the reducers."""
