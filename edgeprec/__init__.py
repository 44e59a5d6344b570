"""Run language models on edge devices at the lowest joules per token, without changing a single output token."""
