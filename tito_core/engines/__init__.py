"""What samples: the engine protocol, and an embedded engine that follows a script."""
