"""The policies, one module for each family; the seam is ``harness.reference.policy``."""
