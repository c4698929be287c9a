"""KV tiers below the GPU's pool: the link to host memory, and vLLM's CPU pool. SGLang's host copies live in its tree."""
