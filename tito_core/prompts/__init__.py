"""Messages to prompt text that knows where each part came from."""
