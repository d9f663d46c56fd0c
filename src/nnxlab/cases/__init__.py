"""The three bugs, a module each: the broken code, the fix and the evidence for both."""
