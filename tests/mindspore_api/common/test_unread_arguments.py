"""No public argument does nothing without a word: what a function does not read, its docstring names, or a reason here
says why it cannot matter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mspc
from mspc.mindspore_api.index.functions import is_expression, tree_of
from mspc.mindspore_api.index.table import IndexRow, module_of, rows_of
from mspc.mindspore_api.rooms import ROOMS

(API,) = (Path(mspc.__file__).parent / room for room in ROOMS)
REASONS = {
    "how something is done, never what comes out": """
        common/parameter.py:Parameter.__init__.storage_format common/parameter.py:Parameter.__init__.device
        communication/group.py:create_group.options
        dataset/images.py:_ImageDataset.__init__.cache dataset/images.py:ImageFolderDataset.__init__.cache
        dataset/pipeline.py:Dataset.create_tuple_iterator.do_copy
        dataset/pipeline.py:Dataset.create_dict_iterator.do_copy
        dataset/pipeline.py:Dataset.batch.python_multiprocessing dataset/pipeline.py:Dataset.batch.max_rowsize
        dataset/sources.py:GeneratorDataset.__init__.max_rowsize
        mint/distributed.py:init_process_group.init_method mint/distributed.py:init_process_group.timeout
        mint/distributed.py:init_process_group.store mint/distributed.py:init_process_group.group_name
        mint/distributed.py:init_process_group.pg_options mint/distributed.py:init_process_group.device_id
        mint/distributed.py:new_group.timeout mint/distributed.py:new_group.pg_options
        mint/distributed.py:new_group.use_local_synchronization mint/distributed.py:new_group.group_desc
        mint/distributed.py:barrier.device_ids
        nn/cell.py:Cell.init_parameters_data.auto_parallel_mode nn/optim/adaptive.py:RMSProp.__init__.use_locking
        nn/optim/adaptive.py:FTRL.__init__.use_locking
        ops/multitype.py:MultitypeFuncGraph.__init__.read_value
        _extends/__init__.py:cell_attr_register.attrs common/api.py:lazy_inline.attrs common/api.py:lazy_inline.policy
        train/model.py:Model.predict.config common/api.py:set_recursion_limit.recursion_limit
        train/model.py:Model.infer_predict_layout.skip_backend_compile train/model.py:Model.build.sink_mode
        train/model.py:Model.fit.valid_dataset_sink_mode
        profiler.py:mstx.range_start.message
        profiler.py:mstx.range_start.domain""",
    "values have no places in a network": """
        ops:.astype.copy""",
    "of an interface that others heed": """
        alias.py:PublicFinder.find_spec.target checks.py:anything.key
        common/dtype.py:_DtypeKind.__init__.letters common/initializers.py:Constant.draw.generator
        dataset/operation.py:Arithmetic.many.draws dataset/pipeline_random.py:EagerDraws.at.index
        dataset/pipeline_random.py:EagerDraws.inside.place dataset/transforms.py:OneHot.many.draws
        dataset/transforms.py:Fill.many.draws
        dataset/vision/operations.py:Decode.single.draws
        dataset/vision/operations.py:CenterCrop.many.draws
        dataset/vision/operations.py:Pad.many.draws dataset/vision/operations.py:Resize.many.draws
        nn/loss_scale.py:FixedLossScaleUpdateCell.construct.loss_scale
        nn/loss_scale.py:TrainOneStepWithLossScaleCell.start_overflow_check.pre_cond
        nn/loss_scale.py:TrainOneStepWithLossScaleCell.get_overflow_status.status
        nn/loss_scale.py:all_finite.status nn/loss_scale.py:StaticLossScaler.adjust.grads_finite
        train/callback.py:TimeMonitor.on_train_begin.run_context train/callback.py:TimeMonitor.epoch_begin.run_context
        train/callback.py:TimeMonitor.step_begin.run_context train/callback.py:TimeMonitor.step_end.run_context""",
    "it follows from another argument": """
        common/parameter.py:Parameter.set_data.slice_shape
        nn/basic.py:Dropout.__init__.dtype
        train/checkpointing.py:CheckpointConfig.__init__.enc_mode
        train/serialization.py:save_checkpoint.enc_mode train/serialization.py:load_checkpoint.dec_mode
        parallel/checkpoint_transform.py:load_distributed_checkpoint.dec_mode""",
    "there is nothing to cut or to show": """
        nn/wrap.py:VirtualDataset.shard.args nn/wrap.py:VirtualDataset.shard.kwargs
        nn/wrap.py:VirtualDataset.add_prim_attr.name
        nn/wrap.py:VirtualDataset.add_prim_attr.value""",
}
"""Arguments, or classes, by the reason."""


Owner = ast.ClassDef | None


def functions(tree: ast.AST, owner: Owner = None) -> Iterator[tuple[Owner, ast.FunctionDef]]:
    """Public functions and methods, constructors and calls."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, node)
        elif isinstance(node, ast.FunctionDef) and (node.name[0] != "_" or node.name in ("__init__", "__call__")):
            yield owner, node


def unread(owner: Owner, function: ast.FunctionDef) -> Iterator[str]:
    """Arguments that the body does not read, and that no docstring names."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if arg]
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if not body or isinstance(body[0], ast.Raise):
        return
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    about = f"{ast.get_docstring(function) or ''} {ast.get_docstring(owner) or '' if owner else ''}"
    for name in names:
        if name not in ("self", "cls") and name[0] != "_" and name not in read | {"locals", "vars"}:
            if not re.search(rf"\b{name}\b", about):
                yield name


def found() -> set[str]:
    names: set[str] = set()
    for file in sorted(API.rglob("*.py")):
        place = file.relative_to(API).as_posix()
        for owner, function in functions(ast.parse(file.read_text(encoding="utf-8"))):
            full = f"{owner.name}.{function.name}" if owner else function.name
            names |= {f"{place}:{full}.{name}" for name in unread(owner, function)}
    return names | {f"{row.module}:{row.names[0]}.{name}" for row in all_rows() for name in unread_of_row(row)}


def all_rows() -> set[IndexRow]:
    """Every row of the index that is a function."""
    modules = {module_of(path.name) for path in (API / "index").glob("*.txt")}
    found = {row for module in modules for row in rows_of(module).values()}
    return {row for row in found if row.kind != "class" and is_expression(row)}


def unread_of_row(row: IndexRow) -> Iterator[str]:
    tree = tree_of(row)
    tree.body.insert(0, ast.Expr(ast.Constant(row.doc)))
    yield from unread(None, tree)
    del tree.body[0]


def test_every_argument_is_read_or_spoken_of() -> None:
    known = [name for listed in REASONS.values() for name in listed.split()]
    names = found()
    assert [n for n in sorted(names) if not any(n == k or n.startswith(f"{k}.") for k in known)] == []
    assert [k for k in known if not any(n == k or n.startswith(f"{k}.") for n in names)] == [], "they are read by now"
