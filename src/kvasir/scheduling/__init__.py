"""Who runs in the next step: queue, budget, admission, preemption.  Hands out tokens, never touches tensors."""
