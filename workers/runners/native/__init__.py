"""The C kernels of the CPU, and the library that they are compiled into."""
