"""What the bugs cost at full size, and what the TPU's own compiler says."""
