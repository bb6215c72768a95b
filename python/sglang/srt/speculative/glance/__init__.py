"""GLANCE: one-pass block drafting with lossless tree verification for vision-language models."""
