"""The Qwen families for tito-core."""
