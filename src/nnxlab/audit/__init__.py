"""Instruments that look for the three bugs, and their kin, in a model that is not ours."""
