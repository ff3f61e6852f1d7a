"""OpenAI-compatible server in two processes: HTTP and text here, the engine in its own, typed messages between."""
