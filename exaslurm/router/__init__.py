"""The data plane: one OpenAI-compatible address before many engines.

A request passes ``auth`` (whose key), ``parse`` (what must be known of the body), ``table`` and
``choose`` (which replica), ``forward`` (there and back, with retries) and ``account`` (figures).
"""
