"""The method protocol and what it is made of: keys, messages, trees, options, errors."""
