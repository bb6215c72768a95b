"""The method in plain torch: no host synchronisation, no SGLang imports."""
