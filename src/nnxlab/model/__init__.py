"""The specimen: DeepSeek-V3 in small, in Flax NNX and in Flax Linen, over one set of operations."""
