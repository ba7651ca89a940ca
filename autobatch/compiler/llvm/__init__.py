"""Print kernels in LLVM's language, compile them to machine code, and keep that on disk."""
