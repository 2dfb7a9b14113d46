"""The index of public names, and of MindSpore's names that mspc lacks, from the tables in this folder.

A table has the name of its public module, optionally followed by a dash and a family: `ops-activation.txt`, `mint.txt`;
`mspc` is mspc itself. Functions are made from its rows, and public modules look up attributes in it (`module.py`):

    use mspc.ir.types: BOOL INT64               names used by the expressions below, and their module
    softsign(x) = Softsign()(x)                 a function; below it, indented, the text of `help`
    square .square = Square                     an operator as a function of its inputs and its fields
    divide = div                                another name of a row
    from mspc.mindspore_api.ops.function.math_func: div   a function, or another object
    hidden from mspc.mindspore_api.mint.nn.layers: Linear the same for an object that `dir()` does not show
    all: mspc.mindspore_api.nn                  the table of a module, or else the names its files define
    each: *Ext = mint.nn.*                      every name of other modules, each under another one; not shown
    modules: nn linalg                          public modules below this one, which `__all__` names
    module: nn.layer nn.layer.basic = mspc.mindspore_api.nn   in `mspc-modules.txt`: public modules with another place
    absent: nn.WithGradCell = value_and_grad    in `mspc-absent.txt`: the replacement of a name that mspc lacks, or,
                                                below it, indented, the reason; `ops.csr_*` is every such name
    lists: nn = 266 SampledSoftmaxLoss          in `mindspore.txt`: number of names in MindSpore, and those mspc lacks

A name with a leading dot is a method of tensors. Parameters without an annotation are `Any`. An expression consists of
arguments, operators (capitalised), functions of the module itself, of `ops`, `mint` and `numpy` (`ops.chunk`), and
constants. `check(...) or value` is the value after a check, which raises an error or returns None.
"""
