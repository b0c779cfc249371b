"""Compression of what travels: specs without torch (bytes on the wire, cost), tensors with it."""
