"""Text to tokens: tokenizers and chat templates."""
