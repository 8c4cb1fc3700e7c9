"""What users of windowmill import in their own tests: :mod:`windowmill.testing`."""
