"""The cell compiler: a stage of a cell becomes products, fused kernels of generated source, and interpreted ops.

lowering     instructions -> loops over elements (expressions, `autobatch.ops.expression`), products, interpreted ops
splitting    loops over stacked gates -> loops over one gate each
hoisting     what depends on attributes alone -> once for all rows of the type
fusion       loops -> blocks of one loop nest, blocks -> kernels
assignment   the storage class of each value: register, row, batch, persistent; and its columns there
checking     what is right after each of these; printing shows it, neighbours give the reasons why not fewer kernels
numba        a kernel as source, and source as a function that is called by its address
"""
