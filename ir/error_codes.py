"""The codes of errors: each is one kind of mistake, with an explanation and an example, as `mspc explain` prints it.

The first two digits of a code are an area of mspc. A code that ends in 00 is for the errors of its area that have no
code of their own. A code is never used again for another mistake: an entry that is no longer needed is deleted, and its
number is added to `RETIRED`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One kind of mistake.

    example: text in which `{{wrong -> right}}` are the differences between a wrong example and its right form. It is
    one of: command lines (`$ mspc ...`, in a folder with a `net.py`), the method `construct` of a network, lines of
    its `__init__` (`self. ...`), a graph (`#IR entry ...`), a plan (`[operators] ...`), or statements of a script.
    Empty for the codes of areas.
    """

    code: str
    title: str
    text: str
    example: str = ""

    @property
    def wrong(self) -> str:
        """The example with the mistake."""
        return _CHOICE.sub(r"\1", self.example)

    @property
    def right(self) -> str:
        """The example without the mistake."""
        return _CHOICE.sub(r"\2", self.example)


_CHOICE = re.compile(r"\{\{(.*?) -> (.*?)\}\}", re.S)

RETIRED: tuple[str, ...] = ()
"""Codes of former versions."""

AREAS = (
    ("commands.search", "E1300"), ("search", "E1300"), ("verify", "E1400"), ("commands.verif", "E1400"),
    ("commands.check", "E1400"), ("commands.budget", "E1400"), ("commands", "E0100"), ("cli", "E0100"),
    ("doctor", "E0100"), ("engine.capture", "E0100"), ("engine.script", "E0100"), ("output", "E0100"),
    ("compiler.frontend.micro_batches", "E0500"), ("compiler.config", "E0400"), ("compiler", "E0200"),
    ("passes.pipelining", "E0500"), ("passes.lib.stage", "E0500"), ("passes.lib.schedule", "E0500"),
    ("passes.base", "E0900"), ("passes", "E0400"), ("sharding", "E0400"), ("plans", "E0400"), ("analysis", "E0400"),
    ("checkpoint", "E0600"), ("mindspore_api.train.checkpointing", "E0600"), ("ir.files", "E0600"),
    ("mindspore_api.train.serialization", "E0600"), ("readers", "E0700"), ("runtime.gpu", "E0850"),
    ("runtime", "E0800"), ("engine", "E0800"), ("mindspore_api.dataset", "E1100"),
    ("mindspore_api.mindrecord", "E1100"), ("mindspore_api.train", "E1200"), ("mindspore_api.parallel", "E0400"),
    ("mindspore_api.train.metrics", "E1201"), ("mindspore_api.parallel.layout", "E0413"),
    ("mindspore_api.communication", "E1009"), ("plans.files.plan_file", "E0412"), ("commands.budget.limits", "E1402"),
    ("mindspore_api", "E1000"), ("ops", "E0300"), ("ir.initial_value", "E1000"), ("ir.builder", "E0300"),
    ("ir", "E0900"),
)  # fmt: skip
"""The code of an error without one, by the module that made it: of the longest of these beginnings of names. A module
with one kind of mistakes has the code of that kind."""


def area_code(module: str) -> str:
    """Return the code of the errors that a module makes without naming a code."""
    name = module.removeprefix("mspc.")
    found = max((start for start, _ in AREAS if name.startswith(start)), key=len, default="")
    return dict(AREAS).get(found, "E0000")


MISTAKES = (
    ErrorCode("E0000", "a mistake without an area",
        "The message names the mistake. The error comes from a script or from a part of mspc that has no area of its "
        "own, so that no further explanation exists."),
    # Commands, scripts and the folders of compiles
    ErrorCode("E0100", "a command cannot do what it is asked for",
        "The options or files of a command do not fit. The message names the option or file, and a note names a "
        "correct one. `mspc COMMAND --help` lists the options."),
    ErrorCode("E0101", "a script, file or folder does not exist",
        "The command line names a file that is not there. Paths are relative to the current folder. A script that the "
        "command reads must exist before any of it runs, so nothing has been written.",
        "$ mspc compile {{nett.py -> net.py}} --ranks 4"),
    ErrorCode("E0102", "a script calls no network",
        "A command that compiles runs the script up to the first call of a network, and compiles that call. This "
        "script ended before it called one. Call the network with inputs at the end of the script, or name the "
        "network on the command line: `mspc compile net.py:Net --input 'float32[8,32]'`.",
        "network = Net()\nnetwork.set_train({{False)\nraise SystemExit -> False)}}"),
    ErrorCode("E0103", "the script is not valid Python",
        "Python cannot parse the file. The caret is where the parser stopped, which may be after the mistake: an "
        "opening bracket without a closing one is reported where the bracket is.",
        "sizes = {{(8, 32 -> (8, 32)}}"),
    ErrorCode("E0104", "there is no such rank",
        "Ranks are numbered from 0 to the number of ranks minus 1.",
        "$ mspc compile net.py --ranks 4 --rank {{4 -> 3}}"),
    ErrorCode("E0105", "an option has a value that cannot be read",
        "Sizes are written with a unit (`80GB`, `512MiB`), times too (`3ms`), shares as `5%` or `0.05`. The message "
        "shows an example of the right form.",
        "$ mspc check net.py --ranks 4 --max-bytes {{3XB -> 3MB}}"),
    ErrorCode("E0106", "two options exclude each other",
        "Both options answer the same question, or ask for two different outputs of one command. Use one of them, or "
        "run the command twice.",
        "$ mspc search net.py --ranks 4 --explain matmul{{ --compare a.toml b.toml -> }}"),
    ErrorCode("E0107", "an option needs another option",
        "The option changes the effect of another option, which is missing. The note names it.",
        "$ mspc compile net.py --ranks 4{{ --machine h100 -> }}"),
    ErrorCode("E0108", "the output folder holds files that mspc did not write",
        "A compile replaces the whole output folder. To protect other files, mspc only replaces folders whose files "
        "it has written itself. Choose a new folder, or an empty one.",
        "$ mspc compile net.py --ranks 4 --out {{. -> graphs}}"),
    ErrorCode("E0109", "the ending of an output file is not known",
        "The ending of the name decides the format of the file. The message lists the endings that the option takes.",
        "$ mspc search net.py --ranks 4 --out {{plan.txt -> plan.toml}}"),
    ErrorCode("E0110", "the folder is not the output of a compile",
        "The folder has no `program.json`, which every compile writes. Name the folder that `mspc compile --out` "
        "wrote, which is `saved_graph` by default, or compile again.",
        "$ mspc compile net.py --ranks 4\n$ mspc run {{graphs -> saved_graph}} --simulate --synthetic"),
    ErrorCode("E0111", "a file cannot be written",
        "The folder does not exist, is read-only, is a file, or the disk is full. The message has the reason. mspc "
        "creates no parent folders of files that an option names.",
        "$ mspc compile net.py --ranks 4 --json {{no/report.json -> report.json}}"),
    ErrorCode("E0112", "the folder was compiled for another number of ranks",
        "The programs in a folder are for a fixed number of ranks. Leave `--ranks` out, or compile again for the "
        "number that you want.",
        "$ mspc compile net.py --ranks 4\n$ mspc verify saved_graph --ranks {{2 -> 4}}"),
    ErrorCode("E0113", "there is no operator, pass or mode of this name",
        "The name is not in the list. Names are case-sensitive. `mspc ops` lists the operators, `mspc passes` the "
        "passes.",
        "$ mspc ops {{MatMull -> MatMul}}"),
    ErrorCode("E0114", "there is no such error code",
        "Codes are an E and four digits. `mspc explain` without an argument lists all of them.",
        "$ mspc explain {{E9999 -> E0114}}"),
    ErrorCode("E0115", "the folder of the demo is not empty",
        "`mspc demo` writes a small project and does not mix it with other files. Give it a new folder or an empty "
        "one.",
        "$ mspc demo {{. -> project}}"),
    ErrorCode("E0116", "a file is damaged",
        "The file ends too early, has the wrong format, or was edited by hand. Files of a compile are written again by "
        "compiling again; a checkpoint can be tested with `mspc ckpt check`.",
        "$ mspc compile net.py --ranks 4\n$ {{echo hello > saved_graph/program.json -> mspc --version}}\n"
        "$ mspc run saved_graph --simulate --synthetic"),
    ErrorCode("E0117", "mpirun started another number of ranks",
        "The script or the option asks for one number of ranks, and the launcher started another one. Start as many "
        "ranks as the network is sharded for.",
        "$ mpirun --oversubscribe -n 2 mspc run net.py --ranks {{4 -> 2}}"),
    ErrorCode("E0118", "the description of an input cannot be read",
        "An input is written as an element type with a shape: `float32[8,32]`. A scalar has an empty shape: "
        "`int32[]`.",
        "$ mspc compile net.py:Net --ranks 4 --input {{float33 -> float32}}[8,32]"),
    ErrorCode("E0119", "the script does not define this network",
        "The part after the colon is a class or a function of the script, or a call of one: `net.py:Net(32, 16)`.",
        "$ mspc compile net.py:{{Nett -> Net}} --ranks 4 --input float32[8,32]"),
    ErrorCode("E0120", "the script raised an exception",
        "Python stopped in the script's own code, before or after mspc was called. The traceback shows the script's "
        "lines.",
        "rows = [1, 2, 3]\nrows[{{3 -> 2}}]"),
    # The Python of `construct`
    ErrorCode("E0200", "Python that cannot be compiled",
        "The body of a compiled function becomes one graph before it runs. Expressions whose value is only known when "
        "the network runs can be tensors, and nothing else. Move other work to `__init__` or out of the network."),
    ErrorCode("E0201", "a name is not defined",
        "No variable, argument, global or built-in of this name is visible at this line. The note lists similar names.",
        "def construct(self, x):\n    return ops.relu({{y -> x}})"),
    ErrorCode("E0202", "an object has no such attribute",
        "The attribute is not set in `__init__`, or the class has no such method. The note lists similar names.",
        "def construct(self, x):\n    return self.{{matmull -> matmul}}(x, self.w)"),
    ErrorCode("E0203", "a statement or a function is not supported in a compiled function",
        "Compiled functions support assignments, arithmetic, conditions, loops, comprehensions, calls and common "
        "built-ins. Everything with an effect outside of the graph (files, `try`, `global`, coroutines) is refused. "
        "Do it before or after the call of the network.",
        "def construct(self, x):\n    {{with open('x') as f:\n        pass -> y = x}}\n    return x"),
    ErrorCode("E0204", "the contents of a tensor are needed at compile time",
        "Shapes and element types are known at compile time; the numbers in a tensor are known only when the network "
        "runs. Use operators on the tensor instead of Python on its contents: `ops.select` for a choice, masks for "
        "positions.",
        "def construct(self, x):\n    return {{x.asnumpy() -> ops.relu(x)}}"),
    ErrorCode("E0205", "two branches leave values of different types",
        "A condition that depends on a tensor compiles both branches. A variable that both assign needs one shape and "
        "one element type after them.",
        "def construct(self, x):\n    if x.sum() > 0:\n        y = x\n    else:\n"
        "        y = {{(x, x) -> x * 2}}\n    return y + 1"),
    ErrorCode("E0206", "a loop does not end",
        "The condition of the loop is known at compile time and stays true, or the loop runs more often than the "
        "compiler unrolls. A loop over a tensor's value is not unrolled; a loop over Python numbers is.",
        "def construct(self, x):\n    n = 0\n    while n < 3:\n        x = x + 1\n        n = n + {{0 -> 1}}\n"
        "    return x"),
    ErrorCode("E0207", "a compiled function changes an object outside of it",
        "A list, dict or attribute of the script would change while the network is compiled, not at every step. "
        "Return the value, or hold it in a Parameter, which a step may assign.",
        "self.seen = []\ndef construct(self, x):\n    {{self.seen.append(1) -> seen = [1]}}\n    return x"),
    ErrorCode("E0208", "a Parameter or a cell is made in a compiled function",
        "Parameters and cells belong to the network for its whole life. Make them in `__init__`.",
        "def construct(self, x):\n    w = {{Parameter(Tensor(np.ones([32, 16], np.float32)), 'v') -> self.w}}\n"
        "    return ops.matmul(x, w)"),
    ErrorCode("E0209", "a function is called with the wrong arguments",
        "The call lacks an argument, gives one twice, or gives one that the function does not have.",
        "def construct(self, x):\n    return self.scaled(x{{ -> , 2.0}})\ndef scaled(self, x, factor):\n"
        "    return x * factor"),
    ErrorCode("E0210", "the program raises an exception at compile time",
        "A `raise` or `assert` of the network was reached while it was compiled, because its condition depends on "
        "values that are known then. The message is the program's own.",
        "def construct(self, x):\n    assert x.shape[0] == {{16 -> 8}}, 'wrong batch'\n    return x"),
    ErrorCode("E0211", "a network returns something other than tensors",
        "The result of a compiled network is a tensor, a number, or a tuple of them. Return text, dicts and objects "
        "from functions that are not compiled.",
        "def construct(self, x):\n    return {{print -> x}}"),
    ErrorCode("E0212", "an index does not fit the tensor",
        "An index is an integer, a slice, `None`, `...`, or a tensor of integers or Bool. It must lie within the "
        "dimension, and there may be as many of them as the tensor has dimensions.",
        "def construct(self, x):\n    return x[{{8 -> 7}}]"),
    ErrorCode("E0213", "there is nothing to differentiate",
        "Gradients are taken of a result that depends on floating-point arguments or Parameters, with a position or "
        "weights that exist.",
        "def construct(self, x):\n    return ms.grad(self.square, {{1 -> 0}})(x)\ndef square(self, x):\n"
        "    return x * x"),
    ErrorCode("E0214", "bprop returns the wrong gradients",
        "A `bprop` of a cell returns one gradient for each argument of `construct`, with the argument's shape and "
        "element type.",
        "class Twice(nn.Cell):\n"
        "    def construct(self, x):\n"
        "        return x * 2\n"
        "\n"
        "    def bprop(self, x, out, dout):\n"
        "        return {{dout.sum() -> dout * 2}}\n"
        "\n"
        "ms.grad(Twice())(Tensor(np.ones([8, 4], np.float32)))"),
    ErrorCode("E0215", "a loop goes over something without elements",
        "`for` goes over tuples, lists, ranges, dicts and the rows of a tensor. A tensor without dimensions and a "
        "number have no elements; a set has no order.",
        "def construct(self, x):\n    for i in {{8 -> range(8)}}:\n        x = x + i\n    return x"),
    ErrorCode("E0216", "a variable may have no value",
        "The variable is assigned in one branch only, or in a loop that may have no iteration. Assign it before.",
        "def construct(self, x):\n    {{pass -> y = x}}\n    if x.sum() > 0:\n        y = x * 2\n    return y"),
    ErrorCode("E0217", "calls are nested without end",
        "Functions are expanded at compile time. A recursion must end by a condition that is known then, for example "
        "on a Python number.",
        "def construct(self, x):\n    return self.power(x, 3)\ndef power(self, x, n):\n"
        "    return x if n == 1 else x * self.power(x, {{n -> n - 1}})"),
    ErrorCode("E0218", "a value is called that is no function",
        "Only functions, methods, classes and cells can be called.",
        "def construct(self, x):\n    return {{self.w(x) -> self.matmul(x, self.w)}}"),
    # Operators
    ErrorCode("E0300", "an operator refuses its operands",
        "The message names the operator, the operand and the dimension, and a note has the remedy. `mspc ops NAME` "
        "prints the operands and the sharding rule of an operator."),
    ErrorCode("E0301", "an operator has the wrong number of operands",
        "The call gives more or fewer operands than the operator takes.",
        "def construct(self, x):\n    return ops.MatMul()(x{{ -> , self.w}})"),
    ErrorCode("E0302", "dimensions of two operands differ",
        "Two dimensions that the operator joins must be equal, as the columns of the first and the rows of the second "
        "operand of a matmul. The shapes are global: they are the same on one device.",
        "def construct(self, x):\n    return ops.matmul(x, self.w{{[:16] -> }})"),
    ErrorCode("E0303", "an operand has the wrong number of dimensions",
        "The operator works on a fixed number of dimensions, or on at least so many.",
        "def construct(self, x):\n    return ops.MatMul()(x{{[0] -> }}, self.w)"),
    ErrorCode("E0304", "an operand has the wrong element type",
        "The operator does not take this element type, or needs one type in all operands. Convert with `ops.cast`.",
        "def construct(self, x):\n    return ops.MatMul()({{ops.cast(x, ms.int32) -> x}}, self.w)"),
    ErrorCode("E0305", "an argument must be known at compile time",
        "Shapes, axes and counts decide the graph, so they must be Python numbers, not tensors.",
        "def construct(self, x):\n    return ops.BroadcastTo(({{x.sum(), 32 -> 8, 32}}))(x)"),
    ErrorCode("E0306", "an axis is out of range",
        "A tensor with n dimensions has the axes 0 to n - 1, or -n to -1 from the end.",
        "def construct(self, x):\n    return ops.softmax(x, {{2 -> 1}})"),
    ErrorCode("E0307", "an axis is named twice",
        "A list of axes names each dimension at most once. The axes 1 and -1 may be the same dimension.",
        "def construct(self, x):\n    return ops.ReduceSum()(x, ({{1, 1 -> 0, 1}}))"),
    ErrorCode("E0309", "a tensor cannot be reshaped to this shape",
        "A reshape preserves the number of elements. One size may be -1, which is computed from the others.",
        "def construct(self, x):\n    return ops.reshape(x, ({{7 -> 4}}, -1))"),
    ErrorCode("E0310", "an operator has no gradient",
        "The operator is not differentiable, or its gradient is not implemented. Stop the gradient before it with "
        "`ops.stop_gradient`, or leave it out of the loss.",
        "x = Tensor(np.ones([8, 4], np.float32))\n"
        "ms.grad(lambda x: ops.svd(x, {{True -> False}})[1].sum())(x)"),
    ErrorCode("E0311", "a size is negative",
        "Sizes are 0 or more. A -1 has a meaning in `reshape` alone.",
        "def construct(self, x):\n    return x + ops.zeros(({{-1 -> 8}}, 32), ms.float32)"),
    ErrorCode("E0312", "an operand is no tensor",
        "The operator takes tensors. A number becomes a tensor in arithmetic alone; write `Tensor(2.0)` elsewhere.",
        "def construct(self, x):\n    return ops.ReLU()({{'x' -> x}})"),
    # Sharding
    ErrorCode("E0400", "a sharding that is not possible",
        "A strategy, layout, plan or setting of the parallel mode does not fit the network or the number of ranks. "
        "The message names the operator and the dimension."),
    ErrorCode("E0401", "slices do not divide a dimension",
        "All slices of a dimension have one size, so the number of slices must divide the size of the dimension. The "
        "note lists the numbers that do. `set_auto_parallel_context(pad_uneven=True)` pads it if the operator can read "
        "padding.",
        "self.matmul = ops.MatMul().shard((({{3 -> 2}}, 1), (1, 1)))"),
    ErrorCode("E0402", "a strategy needs another number of ranks",
        "The product of the slices of an operator must divide the number of ranks. Ranks that remain hold the same "
        "slices as others.",
        "self.matmul = ops.MatMul().shard((({{8 -> 4}}, 1), (1, 1)))"),
    ErrorCode("E0403", "a strategy does not fit the operands",
        "A strategy has one tuple for each tensor operand, and each tuple one number for each dimension.",
        "self.matmul = ops.MatMul().shard(((2, 1), {{(1,) -> (1, 1)}}))"),
    ErrorCode("E0404", "a dimension must not be sharded",
        "The operator needs all elements of this dimension on one rank, for example the dimension that is normalised. "
        "Shard another dimension. `mspc ops NAME` prints the rule.",
        "self.unit = ops.L2Normalize(axis=1).shard((({{1, 4 -> 4, 1}}),))\ndef construct(self, x):\n"
        "    return self.unit(x)"),
    ErrorCode("E0405", "one dimension is sharded in two ways",
        "Dimensions of two operands that the operator joins must have the same number of slices, as the inner "
        "dimension of a matmul.",
        "self.matmul = ops.MatMul().shard(((1, 4), ({{2 -> 4}}, 1)))"),
    ErrorCode("E0406", "a strategy holds something other than numbers of slices",
        "Each entry of a strategy is an integer of at least 1, the number of slices of its dimension. 1 leaves the "
        "dimension whole.",
        "self.matmul = ops.MatMul().shard((({{0 -> 1}}, 4), (4, 1)))"),
    ErrorCode("E0407", "an operator takes no strategy",
        "The operator has no sharding rule, or takes its layout from its operands. Give the strategy to the operator "
        "before or after it.",
        "self.stop = ops.StopGradient(){{.shard(((4, 1),)) -> }}\n"
        "def construct(self, x):\n    return self.matmul(self.stop(x), self.w)"),
    ErrorCode("E0408", "an out_strategy does not follow from the in_strategy",
        "The layout of the result is given by the operands' layouts and the operator's rule. An out_strategy may only "
        "choose between a partial sum, a scattered sum and the complete result.",
        "self.matmul = ops.MatMul().shard(((2, 1), (1, 2)), out_strategy=({{(4, 1) -> (2, 2)}},))"),
    ErrorCode("E0409", "dataset_strategy does not fit the inputs or the ranks",
        "`dataset_strategy` has one tuple per input with the slices of each dimension; their product divides the "
        "number of ranks. `full_batch` replicates the inputs, `data_parallel` shards the first dimension.",
        "ms.set_auto_parallel_context(dataset_strategy=(({{3 -> 4}}, 1),))"),
    ErrorCode("E0410", "a plan names operators that the network does not have",
        "The plan was made for another network, or the network changed. Names are scopes and instance names as "
        "`mspc compile` prints them. Search again, or rename the entries.",
        "ranks = 4\n[operators]\n\"Default/MatMul-op{{9 -> 0}}\" = [\"(4) [0, -]\", \"(4) [-, -]\"]"),
    ErrorCode("E0411", "a plan is for another number of ranks",
        "A plan has layouts on a mesh of a fixed number of ranks. Search for the number that you compile for.",
        "ranks = {{8 -> 4}}\n[operators]"),
    ErrorCode("E0412", "a plan file cannot be read",
        "A plan is a TOML file with a table `[operators]` that maps names of operators to layouts, as "
        "`mspc search --out` writes it.",
        "ranks = 4\n[{{operator -> operators}}]"),
    ErrorCode("E0413", "a Layout is malformed",
        "A `Layout` names the axes of a device matrix; a call of it names one axis, or `None`, for each dimension.",
        "from mindspore.parallel import Layout\nlayout = Layout((2, 2), ({{'dp' -> 'dp', 'mp'}},))"),
    ErrorCode("E0414", "a setting of the parallel mode does not fit the ranks",
        "`optimizer_weight_shard_size` and similar settings must divide the number of ranks.",
        "ms.set_auto_parallel_context(enable_parallel_optimizer=True,\n"
        "    parallel_optimizer_config={'optimizer_weight_shard_size': {{8 -> 2}}})"),
    # Pipelines
    ErrorCode("E0500", "a pipeline that is not possible",
        "The stages, the schedule or the micro-batches do not fit the network or the ranks."),
    ErrorCode("E0501", "the stages do not divide the ranks",
        "Every stage has the same number of ranks, so the number of stages divides the number of ranks.",
        "ms.set_auto_parallel_context(pipeline_stages={{3 -> 1}})"),
    ErrorCode("E0502", "a cell is of a stage that does not exist",
        "`pipeline_stage` counts from 0 to `pipeline_stages` minus 1.",
        "first, last = nn.Dense(32, 32), nn.Dense(32, 8)\n"
        "first.pipeline_stage, last.pipeline_stage = 0, {{2 -> 1}}\n"
        "net = nn.PipelineCell(nn.WithLossCell(nn.SequentialCell(first, last), nn.MSELoss()), 2)\n"
        "ms.set_auto_parallel_context(pipeline_stages=2)\n"
        "x, y = Tensor(np.ones([8, 32], np.float32)), Tensor(np.ones([8, 8], np.float32))\n"
        "nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(x, y)"),
    ErrorCode("E0503", "micro-batches do not divide the batch",
        "`PipelineCell` divides the first dimension of each input into micro-batches of one size.",
        "first, last = nn.Dense(32, 32), nn.Dense(32, 8)\n"
        "first.pipeline_stage, last.pipeline_stage = 0, 1\n"
        "net = nn.PipelineCell(nn.WithLossCell(nn.SequentialCell(first, last), nn.MSELoss()), {{3 -> 2}})\n"
        "ms.set_auto_parallel_context(pipeline_stages=2)\n"
        "x, y = Tensor(np.ones([8, 32], np.float32)), Tensor(np.ones([8, 8], np.float32))\n"
        "nn.TrainOneStepCell(net, nn.SGD(net.trainable_params()))(x, y)"),
    ErrorCode("E0504", "there is no schedule of this name",
        "A schedule is one of the known names, or a `.csv` file with a table of actions.",
        "ms.set_auto_parallel_context(pipeline_config={'pipeline_scheduler': {{'1f2b' -> '1f1b'}}})"),
    ErrorCode("E0505", "a parallel mode has no stages",
        "Pipelines exist in the modes semi_auto_parallel and auto_parallel.",
        "ms.set_auto_parallel_context(parallel_mode='stand_alone'{{, pipeline_stages=2 -> }})"),
    # Checkpoints and other files of tensors
    ErrorCode("E0600", "a checkpoint cannot be read or written",
        "The message names the file and the reason. `mspc ckpt show` lists the tensors of a checkpoint, and "
        "`mspc ckpt check` reads everything and compares checksums."),
    ErrorCode("E0601", "there is no such checkpoint",
        "The path names no file or folder. A run in several parts writes a folder, whose name is the checkpoint.",
        "$ mspc compile net.py --ranks 4 --weights\n$ mspc ckpt show {{weights.ckpt -> "
        "saved_graph/weights.safetensors}}"),
    ErrorCode("E0602", "a checkpoint does not fit the network",
        "A parameter is missing in the checkpoint, or has another shape or element type there.",
        "ms.save_checkpoint([{'name': 'w', 'data': Tensor(np.ones([{{16 -> 32}}, 16], np.float32))}], 'w.ckpt')\n"
        "ms.load_param_into_net(Net(), ms.load_checkpoint('w.ckpt'))"),
    ErrorCode("E0603", "the format of a checkpoint is not known",
        "The ending of the name decides the format: `.ckpt` or `.safetensors`.",
        "$ mspc compile net.py --ranks 4 --weights\n$ mspc ckpt merge saved_graph/weights.safetensors "
        "w.{{txt -> ckpt}}"),
    # PyTorch
    ErrorCode("E0700", "a network of PyTorch cannot be read",
        "The exported program uses something that mspc does not read, or an option does not fit it. The message names "
        "the operator or option."),
    ErrorCode("E0701", "the file is no exported program of PyTorch",
        "mspc reads `.pt2` files of `torch.export.save`. Weights alone (`torch.save`) and TorchScript have no graph "
        "that can be read.",
        "$ echo hello > model.pt2\n$ mspc compile {{model.pt2 -> net.py}} --ranks 4"),
    ErrorCode("E0702", "an operator of PyTorch is not read",
        "The program calls an ATen operator without an entry in mspc's table. Export with a decomposition, or write "
        "that part of the module with other functions.",
        "$ echo 'import torch; net = type(\"Net\", (torch.nn.Module,), {\"forward\": lambda self, x: "
        "torch.{{poisson -> exp}}(x)}); make = lambda: (net(), (torch.ones(4, 4),))' > model.py\n"
        "$ mspc verify --torch model.py:make --ranks 2"),
    # Runs
    ErrorCode("E0800", "a run failed",
        "A rank could not go on. The message names the rank, the step and the operator; a note has the remedy."),
    ErrorCode("E0801", "the data of a compiled program are missing",
        "A compiled program takes its inputs from `--data FILE.npz`, one global array for each input name. "
        "`--synthetic` makes them up.",
        "$ mspc compile net.py --ranks 4\n$ mspc run saved_graph --simulate{{ ->  --synthetic}}"),
    ErrorCode("E0802", "an array does not fit the program",
        "The array in the file has another shape or element type than the program's input. Arrays are global: all "
        "rows of all ranks.",
        "$ mspc compile net.py --ranks 4\n"
        "$ python -c \"import numpy as np; np.savez('x.npz', x=np.ones([{{4 -> 8}}, 32], np.float32))\"\n"
        "$ mspc run saved_graph --simulate --data x.npz"),
    ErrorCode("E0803", "memory is exhausted",
        "The program needs more memory than the machine or the device has. Shard more, recompute activations, use "
        "micro-batches or offload; `mspc search --memory` finds a plan within a limit.",
        "$ echo 'from mindspore import *; nn.Dense(1, 1 << {{50 -> 5}})(Tensor([[1.0]]))' > net.py\n"
        "$ mspc run net.py --ranks 2 --simulate"),
    ErrorCode("E0804", "ranks call different collectives",
        "All ranks of a group must call the same collectives in the same order. A branch of the script that depends "
        "on the rank calls another one.",
        "$ echo 'from mindspore import *; communication.init(); first = {{communication.get_rank() -> 0}} == 0; "
        "(ops.AllReduce if first else ops.AllGather)()(Tensor([1.0]))' > net.py\n"
        "$ mspc run net.py --ranks 2 --simulate"),
    ErrorCode("E0805", "ranks feed different values",
        "An input that is replicated must be equal on all ranks that hold it. Seed the data set alike on these ranks, "
        "or shard the input. The inputs of a network without collectives are not compared, because its ranks do not "
        "wait for each other.",
        "$ echo 'from mindspore import *; communication.init(); net = nn.Dense(4, 2); "
        "net.matmul.shard(((1, 2), (1, 2))); set_auto_parallel_context(parallel_mode=\"semi_auto_parallel\", "
        "full_batch=True); net(Tensor([[1.0 + {{communication.get_rank() -> 0}}] * 4]))' > net.py\n"
        "$ mspc run net.py --ranks 2 --simulate"),
    ErrorCode("E0806", "a rank ended or does not answer",
        "A process was killed, is stopped, or is in another place of the program than the rank that waits for it. The "
        "message has both places.",
        "$ echo 'from mindspore import *; communication.init(); "
        "{{communication.get_rank() or  -> }}ops.AllReduce()(Tensor([1.0]))' > net.py\n"
        "$ mspc run net.py --ranks 2 --simulate"),
    ErrorCode("E0807", "an operator failed while it ran",
        "The kernel raised an exception, or computed a value that is not finite where this is checked.",
        "$ echo 'from mindspore import *; nn.Embedding(4, 2)(Tensor([{{4 -> 3}}]))' > net.py\n"
        "$ mspc run net.py --ranks 2 --simulate"),
    ErrorCode("E0850", "a GPU cannot be used",
        "There is no GPU, a library is missing, or a kernel failed. `pip install mspc[gpu]` installs the libraries. "
        "There is no example, because a script that is right on one machine fails on another."),
    ErrorCode("E0851", "a GPU is asked for and none can be used",
        "The script or the option wants a GPU on this machine. Run with `--device cpu`, or install the driver and "
        "`mspc[gpu]`.",
        "$ echo 'from mindspore import *; set_context(device_target=\"{{GPU -> CPU}}\", device_id=99); "
        "nn.ReLU()(Tensor([1.0]))' > net.py\n$ mspc run net.py"),
    # Text graphs and passes
    ErrorCode("E0900", "a graph is not valid",
        "The text of a graph breaks a rule of the format, or a pass got a graph that it does not take. `docs` has the "
        "format under IR format."),
    ErrorCode("E0901", "a graph reads a value that is not defined",
        "A node reads values of nodes above it (`%0`), and parameters (`%para1_x`).",
        "#IR entry : @net\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {\n"
        "  %0 = ReLU({{%1 -> %para1_x}})\n      : (<Tensor[Float32], (8, 32)>) -> (<Tensor[Float32], (8, 32)>)\n"
        "  Return(%0)\n}"),
    ErrorCode("E0902", "a graph has a syntax error",
        "The caret is at the first character that does not fit the grammar, and the note lists what may be there.",
        "#IR entry : @net\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {\n"
        "  {{Retrun -> Return}}(%para1_x)\n}"),
    ErrorCode("E0903", "the header does not fit the graph",
        "The header counts the parameters and subgraphs, and names the entry. Correct the line, or delete the counts.",
        "#IR entry : @{{nett -> net}}\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {\n"
        "  Return(%para1_x)\n}"),
    ErrorCode("E0904", "an operator of a graph lacks an attribute or has an unknown one",
        "`primitive_attrs` has the attributes of the operator's class. The note lists similar names.",
        "#IR entry : @net\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {\n"
        "  %0 = Softmax(%para1_x) primitive_attrs: { {{axes -> axis}}: (1)}\n"
        "      : (<Tensor[Float32], (8, 32)>) -> (<Tensor[Float32], (8, 32)>)\n  Return(%0)\n}"),
    ErrorCode("E0905", "the types of a node do not fit its operands",
        "The line of types below a node repeats the types of its operands, and the type of its result follows from "
        "them. Correct that line, or the operands.",
        "#IR entry : @net\n\n%para1_x: <Tensor[Float32], (8, 32)>\n\nsubgraph @net() {\n  %0 = ReLU(%para1_x)\n"
        "      : (<Tensor[Float32], (8, {{16 -> 32}})>) -> (<Tensor[Float32], (8, 32)>)\n  Return(%0)\n}"),
    ErrorCode("E0906", "an element type is not known",
        "Element types are Float32, BFloat16, Int32, Bool and so on; the message lists all.",
        "#IR entry : @net\n\n%para1_x: <Tensor[{{Float31 -> Float32}}], (8, 32)>\n\nsubgraph @net() {\n"
        "  Return(%para1_x)\n}"),
    # The Python API
    ErrorCode("E1000", "a call of the Python API is wrong",
        "A class or a function got an argument that it does not take. The message names the argument, its value and a "
        "correct one."),
    ErrorCode("E1001", "an argument has the wrong type",
        "The message names the argument and the type that it needs. Python's `True` is no integer here.",
        "ms.set_auto_parallel_context(pipeline_stages={{'1' -> 1}})"),
    ErrorCode("E1002", "an argument has an impossible value",
        "The message names the values that the argument can have.",
        "ms.set_auto_parallel_context(parallel_mode='{{semi_auto -> semi_auto_parallel}}')"),
    ErrorCode("E1003", "a setting or argument is not known",
        "The name is misspelt, or a setting of another version of MindSpore. The note lists similar names.",
        "ms.set_context({{mod -> mode}}=0)"),
    ErrorCode("E1004", "mspc lacks this name of MindSpore",
        "The name is not implemented, or was removed. The message says what to write instead. `mspc doctor SCRIPT` "
        "lists all such names of a script without running it.",
        "dense = nn.{{Densee -> Dense}}(32, 16)"),
    ErrorCode("E1005", "a cell is used before it is initialised",
        "`__init__` of a cell calls `super().__init__()` before it sets a Parameter or a cell.",
        "class Small(nn.Cell):\n    def __init__(self):\n        {{pass -> super().__init__()}}\n"
        "        self.relu = nn.ReLU()\nSmall()"),
    ErrorCode("E1006", "a cell or a Parameter is of the wrong kind",
        "Lists of cells hold cells, and optimizers take Parameters.",
        "cells = nn.SequentialCell([nn.ReLU(), {{3 -> nn.Tanh()}}])"),
    ErrorCode("E1007", "a tensor cannot be made of these values",
        "A tensor is made of numbers, NumPy arrays and lists of them, all rows of one length.",
        "t = Tensor([[1, 2], [{{3 -> 3, 4}}]])"),
    ErrorCode("E1008", "an initializer does not fit the shape",
        "The initializer is not known, or needs another number of dimensions.",
        "from mindspore.common.initializer import initializer\nt = initializer('{{normall -> normal}}', [4, 4])"),
    ErrorCode("E1009", "a group of ranks is wrong",
        "Groups have unique names and hold each rank at most once, all of them ranks of the job.",
        "from mindspore.communication import create_group, init\n"
        "\n"
        "init()\n"
        "create_group(\"pair\", {{[0, 0] -> [0, 1]}})"),
    ErrorCode("E1010", "a call at the wrong time",
        "The call needs another call before it, as `init()` before collectives, or may be made only once.",
        "from mindspore.communication import get_rank, init\n"
        "\n"
        "{{ -> init()}}\n"
        "get_rank()"),
    # Data sets
    ErrorCode("E1100", "a data set is wrong",
        "An operation, a column or a number of rows does not fit. The message names the operation and the column."),
    ErrorCode("E1101", "a data set has no such column",
        "Operations name columns of the rows that reach them. `get_col_names()` lists them.",
        "from mindspore import dataset\nrows = dataset.NumpySlicesDataset({'x': [1, 2]}, shuffle=False)\n"
        "rows = rows.map(lambda x: x, input_columns=['{{y -> x}}'])\nlist(rows)"),
    # Training
    ErrorCode("E1200", "a training is set up wrongly",
        "An argument of Model, a callback, a metric or a checkpoint does not fit."),
    ErrorCode("E1201", "a metric is not known, or gets the wrong values",
        "Metrics are known by name, or are objects of `mindspore.train`. Each takes predictions and labels of certain "
        "shapes.",
        "from mindspore.train import Model\nmodel = Model(Net(), nn.MSELoss(), metrics={'{{accurracy -> mse}}'})"),
    # Searches
    ErrorCode("E1300", "a search cannot be done",
        "The question does not fit the network or the number of ranks. The message names the option."),
    ErrorCode("E1301", "no plan fits the memory",
        "Even the plan with the least memory is above the limit. Allow more memory, take more ranks, recompute, or "
        "search for stages with `--micro-batches`.",
        "$ mspc search net.py --ranks 4 --memory {{1KB -> 1MB}}"),
    ErrorCode("E1302", "a search decides nothing for this operator",
        "The operator follows its operands, or the script gives its strategy, so there are no alternatives to explain.",
        "$ mspc search net.py --ranks 4 --explain {{matmull -> matmul}}"),
    # Verification and budgets
    ErrorCode("E1400", "a verification or a budget cannot be judged",
        "The compile lacks the figure or the values that are compared. The message names what is missing."),
    ErrorCode("E1401", "the ranks compute other values than one device",
        "The table marks the first values that differ. If the network draws random numbers or adds in another order, "
        "see the tolerances of `mspc verify`; otherwise the sharding is wrong, and the first row names the operator. "
        "The example edits the program of one rank.",
        "$ mspc compile net.py --ranks 4\n$ sed -i 's/ReLU/{{Abs -> ReLU}}/' saved_graph/rank_0/*_execute_*.ir\n"
        "$ mspc verify saved_graph"),
    ErrorCode("E1402", "a budget is malformed",
        "A budget is a table `[mspc.budget]` of limits. The message has an example of the entry.",
        "$ mspc check net.py --ranks 4 --max-collectives {{few -> 7}}"),
)  # fmt: skip
