"""Instruments that look for the three bugs, and their kin, in a model that is not ours."""

from nnxlab.audit import quantized, scan_metadata, sown

__all__ = ["quantized", "scan_metadata", "sown"]
