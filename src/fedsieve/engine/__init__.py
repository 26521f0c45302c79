"""The round loop, what it sends, where clients work, and what is kept on disk."""
