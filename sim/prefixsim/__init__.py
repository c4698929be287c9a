"""prefixsim: a discrete-event simulator of LLM prefix caching on modelled GPUs."""

__version__ = "0.1.0"
