"""The evidence behind every figure: the machine's card, its measured ceilings, and result files with their commands."""
