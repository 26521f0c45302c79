"""What can be cut out of a model, and how it is chosen."""
