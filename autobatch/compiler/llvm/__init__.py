"""Print kernels as LLVM IR, compile them to machine code, and cache the code on disk."""
