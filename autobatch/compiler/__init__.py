"""The cell compiler: a stage of a cell becomes products, fused kernels of generated source, and ops that run alone.

lowering   instructions -> loops over elements, products, ops
cutting    loops over stacked gates -> loops over one gate each
hoisting   what depends on attributes alone -> once for all rows of the type
fusing     loops -> blocks of one loop nest, blocks -> kernels, with the reasons why not fewer
storing    which values are numbers in a loop, which are kept in memory, and where
source     a kernel as Python source
loading    source -> a function that is called by address, compiled and cached on disk; or plain Python
checking   what is right after each of these; printing and reasons tell it
"""
