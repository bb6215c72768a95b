"""Device code with thin launchers: tensors in, tensors out, each with its twin in core/."""
