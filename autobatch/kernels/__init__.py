"""The cell compiler: a stage of a cell becomes products, fused kernels of generated source, and ops that run alone.

lowering   instructions -> loops over elements, products, ops
fusing     loops -> blocks of one loop nest, blocks -> kernels, with the reasons why not fewer
storing    which values are numbers in a loop, which are kept in memory, and where
source     a kernel as Python source
loading    source -> a function, compiled and cached on disk, or plain Python
"""
