"""Load tests of any OpenAI-compatible server: what to send and when, exact times of what comes back, a verdict."""
