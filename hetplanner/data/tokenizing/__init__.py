"""Texts, instructions and chats as token files: rows, chat templates, tokenizers; begin with `writing`; no torch."""
