"""The evidence behind every figure: what machine it is, how fast it could be, and result files anyone can make again."""
