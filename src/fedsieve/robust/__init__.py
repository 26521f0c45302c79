"""Replies of clients that may be false: rules that bound their pull, and attacks to test them."""
