"""The index says which public names there are, in the tables beside this file, and which of MindSpore's there are not.

A table is called after its public module, with its family behind a dash: `ops-activation.txt`, `mint.txt`; `mspc` is
the whole. Functions are made of its rows, and every public module that has one answers by it (`module.py`):

    use mspc.ir.types: BOOL INT64               what expressions below name, and where it stands
    softsign(x) = Softsign()(x)                 a function; below it, indented, what `help` says
    square .square = Square                     an operator as a function of its inputs and its fields
    divide = div                                another name of a row
    from mspc.mindspore_api.ops.function.math_func: div   a function, or another object
    hidden from mspc.mindspore_api.mint.nn.layers: Linear the same for what `dir()` does not show
    all: mspc.mindspore_api.nn                  the table of a module, or else the names its files define
    each: *Ext = mint.nn.*                      every name of other modules, each under another one; not shown
    modules: nn linalg                          public modules below this one, which `__all__` names
    module: nn.layer nn.layer.basic = mspc.mindspore_api.nn   in `mspc-modules.txt`: public modules that lie elsewhere
    absent: nn.WithGradCell = value_and_grad    in `mspc-absent.txt`: what to write for a name that mspc lacks, or,
                                                below it, indented, why there is no such thing
    lists: nn = 266 SampledSoftmaxLoss          in `mindspore.txt`: how many names MindSpore lists, and what mspc lacks

A name behind a dot is a method of tensors. Parameters without a kind are `Any`. An expression is made of arguments,
operators (with a capital), functions of the module itself, of `ops`, `mint` and `numpy` (`ops.chunk`), and constants.
"""
