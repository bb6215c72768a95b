"""Offline tools of GLANCE: ``python -m sglang.glance doctor | demo | bench``."""
