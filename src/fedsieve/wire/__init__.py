"""Messages to bytes and back; no pickle, bounded decoding, one exception type."""
