"""The PR's test matrix as training runs: NNX and Linen, plain and quantized, broken and fixed."""
