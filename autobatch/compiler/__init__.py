"""Compile a stage of a cell to matrix products, fused kernels of generated source, and interpreted ops.

lowering     instructions -> loops over elements (expressions, `autobatch.ops.expression`), products, interpreted ops
splitting    loops over stacked gates -> loops over one gate each
hoisting     moves statements that depend on attributes alone out of the batches, to run once for all rows of the type
fusion       loops -> blocks (one loop nest each), blocks -> kernels
assignment   chooses each value's storage class (register, row, batch, persistent) and its columns there
checking     checks the result of each pass; printing shows it; neighbours explains why ops are not fused
llvm         prints kernels as a module for LLVM, and compiles it to functions that are called by their addresses
cuda         prints kernels as CUDA C++
"""
