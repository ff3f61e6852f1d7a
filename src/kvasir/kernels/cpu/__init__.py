"""The compiled CPU kernels: C++ in ``csrc``, one extension module, instruction set chosen at run time."""
