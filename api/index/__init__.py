"""The index has a row for every public function, in the tables beside this file, of which functions are made.

A table is called after its public module, with its family behind a dash: `ops-activation.txt`, `mint.txt`. Its rows:

    use mspc.ir.types: BOOL INT64               what expressions below name, and where it stands
    softsign(x) = Softsign()(x)                 a function; below it, indented, what `help` says
    square .square = Square                     an operator as a function of its inputs and its fields
    divide = div                                another name of a row
    from mspc.api.ops.function.math_func: div   a function that does more than an expression says
    modules: nn linalg                          public modules below this one

A name behind a dot is a method of tensors. Parameters without a kind are `Any`. An expression is made of arguments,
operators (with a capital), functions of the module itself, of `ops`, `mint` and `numpy` (`ops.chunk`), and constants.
"""
